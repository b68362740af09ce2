"""Looking at a server again and again."""

from __future__ import annotations

import time
from collections import deque

import httpx
from rich.console import Console
from rich.live import Live

from resispec.engine.config import ConfigError

from .screen import screen
from .snapshot import Interval, Snapshot, parse

_WINDOW = 10.0  # seconds that the figures are of
_HISTORY = 60  # values of the curve


def watch(url: str, api_key: str | None, interval: float, *, once: bool) -> None:
    """Until it is interrupted, or once. Raises ConfigError if the first look fails."""
    base = url.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address; give one like http://localhost:8000")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    console = Console()
    with httpx.Client(base_url=base, headers=headers, timeout=10) as client:
        _watch(client, base, interval, console, once=once or not console.is_terminal)


def _watch(client: httpx.Client, url: str, interval: float, console: Console, *, once: bool) -> None:
    taken = deque([_scrape(client)])
    history: deque[float] = deque(maxlen=_HISTORY)
    if once:
        time.sleep(interval)
        taken.append(_scrape(client))
        console.print(screen(url, Interval(taken[0], taken[-1]), history, None))
        return
    problem = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(url, Interval(taken[0], taken[-1]), history, problem), refresh=True)
            time.sleep(interval)
            try:
                taken.append(_scrape(client))
            except ConfigError as exc:
                problem = f"{exc}; trying again"
                continue
            problem = None
            history.append(Interval(taken[-2], taken[-1]).rate("generation_tokens_total"))
            # Two are kept however far apart they are: figures need an interval.
            while len(taken) > 2 and taken[-1].time - taken[1].time >= _WINDOW:
                taken.popleft()


def _scrape(client: httpx.Client) -> Snapshot:
    """Raises ConfigError, saying why there are no figures."""
    try:
        response = client.get("/metrics")
        response.raise_for_status()
        return parse(response.text, time.monotonic())
    except httpx.HTTPStatusError as exc:
        hint = "; give --api-key" if exc.response.status_code == httpx.codes.UNAUTHORIZED else ""
        raise ConfigError(f"{exc.request.url} answered {exc.response.status_code}{hint}") from None
    except httpx.TransportError as exc:
        raise ConfigError(f"no answer from {client.base_url}: {str(exc) or type(exc).__name__}") from None
    except ValueError as exc:
        raise ConfigError(f"{client.base_url} is no ResiSpec server: {exc}") from None
