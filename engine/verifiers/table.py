"""The verifiers by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..request import RequestError
from .base import AnyVerifier
from .block import BlockVerifier
from .resispec import ResiSpecVerifier
from .resispec_paper import ResiSpecPaperVerifier
from .resispec_tree import ResiSpecTreeVerifier
from .specinfer import SpecInferVerifier
from .spectr import SpecTrVerifier
from .target import TargetVerifier
from .without_replacement import WithoutReplacementVerifier

_ALL: tuple[AnyVerifier, ...] = (
    ResiSpecVerifier(),
    ResiSpecTreeVerifier(),
    SpecInferVerifier(),
    WithoutReplacementVerifier(),
    SpecTrVerifier(),
    BlockVerifier(),
    TargetVerifier(),
    ResiSpecPaperVerifier(),
)
VERIFIERS: Mapping[str, AnyVerifier] = MappingProxyType({verifier.name: verifier for verifier in _ALL})


def refused(*, allow_inexact: bool) -> dict[str, str]:
    """The verifiers that may not be used, each with a sentence saying why."""
    if allow_inexact:
        return {}
    return {
        name: f"verifier {name!r} is not exact: answers would not follow the target's law; "
        "start the server with --allow-inexact to use it all the same"
        for name, verifier in VERIFIERS.items()
        if not verifier.exact
    }


def get(name: str) -> AnyVerifier:
    """The verifier called ``name``. Raises RequestError, naming the known ones, for any other name."""
    verifier = VERIFIERS.get(name)
    if verifier is None:
        known = ", ".join(sorted(VERIFIERS))
        raise RequestError(f"unknown verifier {name!r}; known: {known}", param="speculation.verifier")
    return verifier
