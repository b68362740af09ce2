"""One step of one request as plain values: what was proposed, what was tested, what was kept and why.

Made only for requests with ``speculation.trace``; see `resispec.engine.runner.trace`.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = "head"  # chosen from the draft's best tokens, before anything was drawn
TAIL = "tail"  # drawn from the draft's law
CORRECTION = "correction"  # drawn from what the tests left of the target's law
BONUS = "bonus"  # drawn from the target's law after a path that was kept to its end
TARGET = "target"  # drawn from the target's law in a step without a tree
FORCED = "forced"  # the only token that the answer's form allowed


@dataclass(frozen=True, slots=True)
class TraceCandidate:
    """One child of a tree node. Equal draws are candidates of their own that lead to one slot.

    ``accept`` is the probability that it is kept when its turn comes. Where one draw settles several
    children, they have their turn together (``shared``), and ``accept`` is the share of each. Of a rule
    over whole trees it is the child's weight: what it must accept, with all that hangs below it.
    """

    slot: int  # of the node it leads to; slot 0 is the root, the last committed token
    parent: int  # slot of the node it hangs below
    depth: int  # 1 for a child of the root
    child: int  # its place among its parent's children
    token_id: int
    origin: str  # HEAD, TAIL, or the name of another source
    p: float  # the target's probability, at its parent
    q: float | None  # its probability in the law it was drawn from; None if it was chosen
    draft: float | None  # in the draft's whole law at its parent; None if the draft was not asked there
    accept: float
    threshold: float | None  # what the test compared p/q with, where the rule has such a number
    uniform: float | None  # of its test; None where the children below decide
    shared: bool  # one draw settled it together with siblings and the correction
    reached: bool  # its turn came
    kept: bool  # it is on the kept path


@dataclass(frozen=True, slots=True)
class TraceToken:
    """A token that a step delivered."""

    token_id: int
    text: str  # what it completed of the answer's text; may be empty
    origin: str  # its candidate's, else CORRECTION, BONUS, TARGET or FORCED
    p: float  # the target's probability
    drawn: float | None  # its probability in the law it was drawn from; None: a candidate, or forced


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step: its tree, and the tokens it delivered, the kept path's first."""

    position: int  # output tokens before this step
    verifier: str
    candidates: tuple[TraceCandidate, ...]  # level by level
    tokens: tuple[TraceToken, ...]  # cut where the answer ends
