"""``POST /v1/audit``: the output laws of all verifiers at one small node, enumerated."""

from __future__ import annotations

import asyncio
import math

from fastapi import APIRouter

from ..openapi import errors
from ..schemas.audit import Audit, AuditRequest, VerifierAudit
from ..state import State
from ..translate import refuse_unknown

router = APIRouter()


@router.post("/v1/audit", responses=errors(400, 413))
async def audit(body: AuditRequest, state: State) -> Audit:
    """What law each verifier's output has. Nothing is sampled."""
    refuse_unknown(body, ignore=state.settings.ignore_unknown_fields)
    async with state.audits:  # one at a time: they take the engine's cores
        return await asyncio.to_thread(_enumerate, body)


def _enumerate(body: AuditRequest) -> Audit:
    from resispec.engine.audit.read import Case
    from resispec.engine.audit.report import audit_cases
    from resispec.engine.verifiers.table import VERIFIERS

    p, q = ([value / math.fsum(law) for value in law] for law in (body.p, body.q))
    [case] = audit_cases([Case(tuple(p), tuple(q), tuple(body.head or ()), body.tail_draws)])["cases"]
    return Audit(
        verifiers={
            name: VerifierAudit(
                exact=VERIFIERS[name].exact,
                law=found["law"],
                acceptance=found["acceptance"],
                total_variation=found["total_variation"],
                ceiling=found["ceiling"],
            )
            for name, found in case["verifiers"].items()
        }
    )
