"""Bodies of ``POST /v1/audit``."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from .common import Body

MAX_TOKENS = 8
MAX_DRAWS = 4

Law = Annotated[
    list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=MAX_TOKENS, fail_fast=True)
]


class AuditRequest(Body):
    """One node: the target's law ``p``, the draft's ``q``, and how its children are made."""

    p: Law
    q: Law
    head: Annotated[list[int] | None, Field(max_length=MAX_TOKENS)] = None  # chosen children, in order
    tail_draws: Annotated[int, Field(ge=0, le=MAX_DRAWS)] = 1  # from q without the head

    @model_validator(mode="after")
    def _are_laws(self) -> Self:
        for name, law in (("p", self.p), ("q", self.q)):
            if abs(math.fsum(law) - 1) > 1e-6:
                raise ValueError(f"{name} sums to {math.fsum(law):.6g}, not to 1")
        if len(self.p) != len(self.q):
            raise ValueError("p and q must have as many entries")
        head = self.head or []
        if len(set(head)) < len(head) or any(not 0 <= token < len(self.p) for token in head):
            raise ValueError("head must name different tokens, each from 0 to the number of tokens less 1")
        return self


class VerifierAudit(BaseModel):
    """What comes out of one verifier, summed over every draw and test."""

    exact: bool  # what it promises
    law: list[float]  # of the output
    acceptance: float  # that a child is kept
    total_variation: float  # of the output's law from p
    ceiling: float | None  # the most that any exact rule could keep of these candidates


class Audit(BaseModel):
    verifiers: dict[str, VerifierAudit]
