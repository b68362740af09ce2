"""What the controller remembers of one request. A preemption changes nothing in it."""

from __future__ import annotations

from dataclasses import dataclass

from .acceptance import Acceptance

FIRST_WAIT, _LONGEST_WAIT = 16, 128  # steps without a tree until the next try


@dataclass(slots=True)
class History:
    """Its own acceptance, and whether it gets trees or when it is tried again.

    A request that goes without is tried after 16 steps, and after twice as many each time nothing was
    kept; something kept has it tried again soon, so that a text that turns predictable is noticed.
    """

    acceptance: Acceptance
    greedy: bool  # nothing is drawn
    is_on: bool = True
    steps_off: int = 0
    wait: int = 0  # until it is tried; 0: at once
    turned_at: int = -1  # tokens there were at the last decision

    @property
    def wants_probe(self) -> bool:
        return not self.is_on and self.steps_off > self.wait

    def turn(self, *, on: bool, length: int) -> None:
        """The controller's decision for the step behind ``length`` tokens.

        It is asked again where a request was preempted before that step: one step all the same.
        """
        self.is_on = on
        if on:
            self.steps_off = 0
        elif length != self.turned_at:
            self.steps_off += 1
        self.turned_at = length

    def tried(self, *, kept: bool) -> None:
        """A tree was verified."""
        if self.is_on:
            self.wait = FIRST_WAIT
            return
        self.steps_off = 0
        self.wait = FIRST_WAIT // 4 if kept else min(_LONGEST_WAIT, max(FIRST_WAIT, 2 * self.wait))
