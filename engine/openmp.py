"""Where OpenMP puts its threads: decided before torch is imported, or never."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
_SPINS = "GOMP_SPINCOUNT"
_SHORT = "5000"  # rounds: some 0.1 ms, more than there is between two parts of a forward


@contextmanager
def openmp_unbound() -> Iterator[None]:
    """Within: none of the variables that tie threads to cores. After: as they were.

    For a process that starts engines' processes and imports torch itself: tied to one core by a variable of
    the user's, it would leave its children no other.
    """
    kept = {name: os.environ.pop(name) for name in _BINDING if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


@contextmanager
def openmp_for_engine() -> Iterator[bool]:
    """Within: variables that keep an engine's threads on their cores, while they have work. After: none.

    As a context it says whether the threads are tied: not where the user has set a variable of OpenMP's.

    Steps beside a busy process stalled without them. OpenMP reads them when torch is imported, and then
    ties the importing thread to the first core. So a server starts its engine's process within and
    imports torch only afterwards, lest the event loop sit on a core of the engine's; a process that runs
    an engine itself imports torch within.

    A thread that waits for its part of a forward spins, by default for milliseconds, and so through all that
    one thread does alone between two forwards. Then the event loop and its clients find no core free, and
    take the one that the engine goes on with. A thread that sleeps after a short while leaves them its own.
    """
    tied = not any(name.startswith("OMP_") for name in os.environ)
    if tied:
        os.environ.update(OMP_PROC_BIND="true", OMP_PLACES="cores")
        os.environ.setdefault(_SPINS, _SHORT)
    yield tied
    for name in (*_BINDING, _SPINS):
        os.environ.pop(name, None)


def leave_first_core() -> None:
    """Keep the calling thread off the first core, to which an engine's own thread is tied. Linux only.

    A step is sent from there, and whom it wakes the kernel likes to run where it was woken: then the engine
    waits for the event loop, although another core has nothing to do between two forwards.
    """
    if sys.platform == "linux":
        cores = os.sched_getaffinity(0)
        if len(cores) > 1:
            os.sched_setaffinity(0, cores - {min(cores)})
