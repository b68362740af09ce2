"""What may be spent on trying requests that go without trees."""

from __future__ import annotations

from collections import Counter

_SHARE = 0.005  # of the time
_VAIN = 4  # tries after which the share is half as large, if no trees came of them
_LEAST = 0.2  # of the share, however many tries were in vain
_READ = 16  # pieces of missed text that may be saved up for


class Tries:
    """A purse of seconds that steps fill by a share of what they take, and tries empty.

    A try costs what a candidate more costs at the load of the moment: little for one request alone, a fifth
    of a step or more among many. So no more is kept than one costs when it is made, and what was saved
    while one would have been cheap buys one dear one. The more of them no trees have come of at such a
    load, the slower it fills: the answer is known by then.

    What a draft has missed is read from another purse, which fills at the full share: a text grows while one
    saves, so a draft that may read less than that would never be tried again.
    """

    def __init__(self) -> None:
        self._saved = 0.0  # seconds
        self._reading = 0.0  # seconds
        self._vain: Counter[int] = Counter()  # by magnitude of the batch: tries since there were trees

    def share(self, batch: int) -> float:
        """Of a step's time with ``batch`` requests."""
        return _SHARE * max(_LEAST, 1 / (1 + self._vain[batch.bit_length()] / _VAIN))

    def planned(self, batch: int, *, trees: bool) -> None:
        """A plan was made that has some, or none."""
        if trees:
            del self._vain[batch.bit_length()]

    def earn(self, batch: int, seconds: float) -> None:
        """A step takes so long."""
        self._saved += self.share(batch) * seconds
        self._reading += _SHARE * seconds

    def afford(self, seconds: float) -> bool:
        """Pay for a try that takes so long, if there is enough."""
        if seconds > self._saved:
            return False
        self._saved = 0.0
        return True

    def afford_reading(self, seconds: float) -> bool:
        """Pay for a piece of what a draft has missed, if there is enough."""
        if seconds > self._reading:
            return False
        self._reading = min(self._reading, _READ * seconds) - seconds
        return True

    def tried(self, batch: int) -> None:
        """A candidate is tried."""
        self._vain[batch.bit_length()] += 1

    def repay(self, seconds: float) -> None:
        """What was tried was kept, and saved so much."""
        self._saved += seconds
