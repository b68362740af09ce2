"""Memory that has been freed and not given back: what loading leaves behind in the C library."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Give it back to the system. Does nothing where the C library cannot: only glibc can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
