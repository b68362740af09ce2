"""Reading the settings from flags, environment and file, with errors that a person can act on."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from resispec.engine.config import ConfigError

from .settings import ENV_PREFIX, ServerSettings, config_path


def load_settings(flags: Mapping[str, Any]) -> ServerSettings:
    """The settings from ``flags`` (only those given), the environment and the file.

    Raises ConfigError naming the first setting at fault, its value, where it came from, and why.
    """
    path = config_path(flags)
    if path is not None:
        _check_file(path)
    try:
        return ServerSettings(**flags)
    except ValidationError as exc:
        raise _explain(exc, flags, path) from None


def _check_file(path: Path) -> None:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"config: cannot read {path}: {exc.strerror}", "config") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"config: {path} is not TOML: {exc}", "config") from exc
    for name in values:
        if name not in ServerSettings.model_fields:
            close = difflib.get_close_matches(name.replace("-", "_"), ServerSettings.model_fields, n=1)
            hint = f"did you mean '{close[0]}'?" if close else "see 'resispec serve --help'"
            raise ConfigError(f"{name}: unknown setting in {path}; {hint}", name)


def _explain(exc: ValidationError, flags: Mapping[str, Any], path: Path | None) -> ConfigError:
    error = exc.errors(include_url=False)[0]
    reason = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return ConfigError(reason, "draft")
    name = str(error["loc"][0])
    if name in flags:
        source = f"--{name.replace('_', '-')}"
    elif (variable := f"{ENV_PREFIX}{name.upper()}") in os.environ:
        source = variable
    else:
        source = str(path)
    value = "" if name == "api_key" else f" {error['input']!r}"  # a key is nobody else's business
    purpose = ServerSettings.model_fields[name].description
    return ConfigError(f"{name}:{value} (from {source}) cannot be used: {reason}. {purpose}", name)
