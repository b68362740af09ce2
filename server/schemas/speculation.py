"""What a request's steps did: ``GET /v1/requests/{id}/speculation``, and its short form in streams."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel

from resispec.engine.trace import StepTrace

Probability = Annotated[float, AfterValidator(lambda value: float(f"{value:.6g}"))]
"""Six digits: more would be noise, and fewer would turn a rare token's into 0."""


class CandidateBody(BaseModel):
    """One child of a node of the tree; see `resispec.engine.trace.TraceCandidate` for the fields."""

    slot: int
    parent: int  # slot of the node it hangs below; 0 is the root
    depth: int
    child: int
    token_id: int
    text: str
    origin: str  # head, tail, or the name of another source
    p: Probability  # under the target
    q: Probability | None  # in the law it was drawn from; null if it was chosen
    draft: Probability | None  # in the draft's whole law; null if the draft was not asked there
    accept: Probability  # that it is kept when its turn comes
    threshold: Probability | None
    uniform: Probability | None
    shared: bool
    reached: bool
    kept: bool


class TokenBody(BaseModel):
    token_id: int
    text: str
    origin: str  # its candidate's; correction, bonus or target for the last of a step
    p: Probability
    drawn: Probability | None


class StepBody(BaseModel):
    index: int
    position: int  # output tokens before this step
    verifier: str
    candidates: list[CandidateBody]
    tokens: list[TokenBody]


class SpeculationTrace(BaseModel):
    """A page of steps. ``next`` is the ``start`` of the page after it; null when there is none yet."""

    object: Literal["speculation.trace"] = "speculation.trace"
    id: str
    choice: int
    num_steps: int  # so far; the request may still be running
    first_step: int  # steps before this one have been forgotten
    steps: list[StepBody]
    next: int | None


class ChunkToken(BaseModel):
    id: int
    text: str
    origin: str


class ChunkStep(BaseModel):
    """The delivered tokens of one step, in a stream."""

    step: int
    tokens: list[ChunkToken]


def step_body(index: int, step: StepTrace, texts: dict[int, str]) -> StepBody:
    """texts: of every candidate's token."""
    return StepBody(
        index=index,
        position=step.position,
        verifier=step.verifier,
        candidates=[
            CandidateBody(
                text=texts[one.token_id],
                **{name: getattr(one, name) for name in CandidateBody.model_fields if name != "text"},
            )
            for one in step.candidates
        ],
        tokens=[
            TokenBody(**{name: getattr(one, name) for name in TokenBody.model_fields}) for one in step.tokens
        ],
    )
