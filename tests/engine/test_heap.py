"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import platform

import psutil
import pytest

from resispec.engine.heap import trim_heap

PIECE, COUNT = 64 << 10, 1024  # smaller than what the C library maps by itself


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps and trims")
def test_what_was_freed_is_given_back() -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype, c.malloc.argtypes, c.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    pieces = [c.malloc(PIECE) for _ in range(COUNT)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    for piece in pieces[:-1]:  # the last one keeps the end of the heap where it is
        c.free(piece)
    process = psutil.Process()
    before = process.memory_info().rss
    trim_heap()
    assert before - process.memory_info().rss > PIECE * COUNT // 2
    c.free(pieces[-1])
