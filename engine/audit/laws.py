"""Text sampled from a target, and both models' logits at every position of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resispec.models.base import StepInputs, StepModel
from resispec.models.causal import CausalModel, chunk_inputs, probe_geometry
from resispec.models.head.step import HeadStepModel
from resispec.models.kv import KVMemory

from ..build import LoadedDraft, LoadedTarget, assemble
from ..config import EngineConfig
from ..engine import Engine
from ..request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Positions:
    """``N`` positions of one text at which a step could have drafted."""

    target: Tensor  # [N, V] float32 logits, of the ids that exist
    draft: Tensor  # [N, Vd] float32 logits
    vocab_ids: Tensor | None  # [Vd] int64: the target's ids of the draft's; None: the same


class LawSource:
    """A loaded pair: texts from its target, and the pair's logits over them."""

    def __init__(
        self, config: EngineConfig, target: LoadedTarget, draft: LoadedDraft, num_positions: int
    ) -> None:
        """num_positions: of the longest text."""
        model = target.model
        self._num_ids = target.num_ids
        self._device = next(model.parameters()).device
        geometry = probe_geometry(model)
        self._draft: StepModel
        if draft.head is not None:
            own = draft.head.geometry(geometry.dtype)
            geometry = replace(geometry, hidden_size=own.hidden_size)
            memory = KVMemory(own, num_positions, self._device)
            # Before the engine is there, which may lay the output matrix out for the CPU's kernels.
            self._draft = HeadStepModel(draft.head, draft.vocab_ids, model, memory)
        else:
            memory = KVMemory(probe_geometry(draft.model), num_positions, self._device)
            self._draft = CausalModel(draft.model, memory, draft.context)
        self._memory = KVMemory(geometry, num_positions, self._device, keep_hidden=True)
        self._engine = assemble(config, target, None)
        # After that: the engine may have put other layers in the place of those that were loaded.
        tap = draft.head.tap(model) if draft.head is not None else None
        self._target = CausalModel(model, self._memory, target.context, tap)

    def sample(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, temperature: float, seed: int
    ) -> list[list[int]]:
        """Prompt and answer of each prompt: the target's own text, ``num_tokens`` each."""
        sampling = [
            SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True, seed=seed + index)
            for index in range(len(prompts))
        ]
        requests = [
            Request(str(index), tuple(prompt), params)
            for index, (prompt, params) in enumerate(zip(prompts, sampling, strict=True))
        ]
        return _answers(self._engine, requests)

    @torch.inference_mode()
    def positions(self, token_ids: Sequence[int], num_prompt: int) -> Positions:
        """All but the first of the answer's tokens: that one comes with the prompt and is never drafted."""
        inputs = chunk_inputs(list(token_ids[:-1]), 0, self._device)
        wanted = torch.arange(num_prompt, len(token_ids) - 1, device=self._device)
        target = self._target.forward(_for(inputs, wanted, None)).logits
        states = None
        if self._draft.needs_hidden:
            assert self._memory.states is not None
            states = self._memory.states.before(inputs.rows, inputs.positions)
        draft = self._draft.forward(_for(inputs, wanted, states))
        vocab_ids = self._draft.vocab_ids
        logits = draft.logits if vocab_ids is not None else draft.logits[:, : self._num_ids]
        return Positions(target[:, : self._num_ids], logits, vocab_ids)


def _for(inputs: StepInputs, wanted: Tensor, hidden: Tensor | None) -> StepInputs:
    return StepInputs(inputs.token_ids, inputs.positions, inputs.rows, inputs.segments, wanted, hidden)


def _answers(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    texts = {request.request_id: list(request.prompt_token_ids) for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step().outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
            texts[output.request_id] += output.token_ids
    return list(texts.values())
