"""What one API key may use: requests and tokens a minute, and requests at a time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from .errors import ApiError


class KeyLimits:
    """Refuses, with 429, requests of a key that has used up its share. None: no limit.

    A minute begins with a key's first request after the last minute. Prompts count when they are known,
    answers when they have ended, so the last requests of a minute may go beyond its tokens; what they do
    counts against that minute only. Clients without keys share one.
    """

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        concurrent_requests: int | None = None,
    ) -> None:
        self._requests = _per_minute(requests_per_minute, "requests")
        self._tokens = _per_minute(tokens_per_minute, "tokens")
        self._concurrent = concurrent_requests
        self._running: Counter[str] = Counter()
        # Only where there is something to count: its storage has a thread that forgets what is over.
        self._windows = FixedWindowRateLimiter(MemoryStorage()) if self._requests or self._tokens else None

    @contextmanager
    def admit(self, key: str) -> Iterator[None]:
        """Count one request of ``key``, running until the end. Raises ApiError 429."""
        if self._concurrent is not None and self._running[key] >= self._concurrent:
            raise _limited(f"{self._concurrent} requests of this key are running, which is its limit", 1)
        for item in (self._tokens, self._requests):
            if self._windows is not None and item is not None and not self._windows.test(item, key):
                seconds = math.ceil(self._windows.get_window_stats(item, key).reset_time - time.time())
                raise _limited(
                    f"This key has used its {item.amount} {item.namespace} of this minute", seconds
                )
        if self._windows is not None and self._requests:
            self._windows.hit(self._requests, key)
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def spend(self, key: str, tokens: int) -> None:
        """Count ``tokens`` of a prompt or an answer."""
        if self._windows is not None and self._tokens and tokens:
            self._windows.hit(self._tokens, key, cost=tokens)


def _per_minute(amount: int | None, unit: str) -> RateLimitItemPerMinute | None:
    return None if amount is None else RateLimitItemPerMinute(amount, namespace=unit)


def _limited(message: str, seconds: int) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(max(1, seconds))})
