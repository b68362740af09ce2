"""The verifiers by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..request import RequestError
from .base import Verifier
from .resispec import ResiSpecVerifier
from .target import TargetVerifier

VERIFIERS: Mapping[str, Verifier] = MappingProxyType(
    {verifier.name: verifier for verifier in (ResiSpecVerifier(), TargetVerifier())}
)


def get(name: str) -> Verifier:
    """The verifier called ``name``. Raises RequestError, naming the known ones, for any other name."""
    verifier = VERIFIERS.get(name)
    if verifier is None:
        known = ", ".join(sorted(VERIFIERS))
        raise RequestError(f"unknown verifier {name!r}; known: {known}", param="speculation.verifier")
    return verifier
