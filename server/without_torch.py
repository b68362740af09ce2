"""Transformers' tokenizers in a process that computes nothing: without torch, which they do not need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


@contextmanager
def without_torch() -> Iterator[None]:
    """Within: torch cannot be imported, and transformers, imported here, goes without it from then on.

    That saves more than 200 MiB. Does nothing in a process that has imported torch or transformers.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    advice = os.environ.get(_NO_ADVICE)
    sys.modules["torch"] = None  # type: ignore[assignment]  # the import system's way to say: not there
    os.environ[_NO_ADVICE] = "1"  # it would say that there are no models without torch
    try:
        yield
    finally:
        del sys.modules["torch"]
        if advice is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = advice
