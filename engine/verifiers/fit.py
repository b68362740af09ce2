"""Whether a rule is exact for the way children were drawn."""

from __future__ import annotations

from typing import Protocol

from ..drawing import Drawing
from .base import Proposal

_TAKING_KNOWN = frozenset({Drawing.HEAD, Drawing.HEAD_AND_TAIL})


class MisfitError(ValueError):
    """A proposal drawn in a way for which the verifier has no exact rule."""


class HasFits(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def fits(self) -> frozenset[Drawing]: ...


def takes_known(verifier: HasFits) -> bool:
    """Whether it has an exact rule for children that were chosen, alone and beside draws."""
    return verifier.fits >= _TAKING_KNOWN


def require_fit(verifier: HasFits, proposal: Proposal) -> None:
    """Raises MisfitError, naming the verifiers that would do."""
    if proposal.drawings <= verifier.fits:
        return
    from .table import VERIFIERS  # which imports every verifier

    wrong = sorted(proposal.drawings - verifier.fits)
    others = sorted(name for name, other in VERIFIERS.items() if proposal.drawings <= other.fits)
    raise MisfitError(
        f"verifier {verifier.name!r} has no rule for {' or '.join(wrong)}; these have: {', '.join(others)}"
    )
