"""What to send to a running server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ...config import ConfigError
from ..forms import FORMS
from ..settings import at_least, check_files, check_plot, check_prompts

KEY_VARIABLES = ("RESISPEC_API_KEY", "OPENAI_API_KEY")


@dataclass(frozen=True, slots=True)
class UrlSettings:
    """Raises ConfigError, naming the option, for what cannot be measured."""

    url: str  # of any server that speaks OpenAI's dialect, with or without /v1
    model: str | None = None  # None: the first that the server lists
    batch: tuple[int, ...] = (1, 8)  # requests in flight
    rate: tuple[float, ...] = ()  # or requests a second, at random moments
    requests: int | None = None  # of each workload; None: all prompts of the set, and each stream one
    temperature: tuple[float, ...] = (0.0,)
    prompts: tuple[str, ...] = ("chat",)
    tokens: int = 64
    repeats: int = 3
    chat: bool = True  # chat completions; else completions
    ignore_eos: bool = False  # a field beyond OpenAI's: all answers get as long as asked
    json: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url is {self.url!r}; use http://HOST:PORT or https://HOST", "url")
        if not self.batch and not self.rate:
            raise ConfigError("nothing to send; name at least one batch or rate", "batch")
        for name, least in (("batch", 1), ("temperature", 0)):
            at_least(min(getattr(self, name), default=least), least, name)
        if min(self.rate, default=1.0) <= 0:
            raise ConfigError(f"rate is {min(self.rate)}; it must be above 0", "rate")
        for name, number in (("tokens", self.tokens), ("repeats", self.repeats), ("requests", self.requests)):
            if number is not None:
                at_least(number, 2 if name == "tokens" else 1, name)
        check_prompts(self.prompts)
        if formed := [name for name in self.prompts if name in FORMS]:
            raise ConfigError(
                f"prompts has {formed[0]!r}, whose answers have a form; it goes without --url", "prompts"
            )
        check_files(self.json, self.markdown, self.plot)
        check_plot(self.plot)

    @property
    def base_url(self) -> str:
        """Without a path that ends with /v1."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")


def api_key() -> str | None:
    """From the environment: never an option, which other users of the machine could read."""
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
