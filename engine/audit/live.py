"""Whether a running server's answers have the target's joint law.

Rosenblatt's transform (Ann. Math. Stat. 23, 1952): put the tokens of each position in an order, most likely
first, and let ``u = P(tokens before x) + v P(x)`` with ``v`` uniform. If every token ``x_d`` has the target's
law given the tokens before it, then ``u_1 .. u_D`` are independent and uniform, whatever the prompts. So
answers over a large vocabulary can be tested jointly, with the target's law only where the answers went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.models.base import Segment, StepInputs
from resispec.models.causal import CausalModel, chunk_inputs, probe_geometry
from resispec.models.kv import KVMemory

from ..build import LoadedTarget

_ANSWERS = 32  # of one forward


@dataclass(frozen=True, slots=True)
class Answer:
    """One short completion."""

    prompt: int  # index of its prompt
    token_ids: tuple[int, ...]  # shorter than asked for where EOS ended it, which is then its last token
    accepted: int = 0  # tokens that were drafted


class LiveLaws:
    """The target's law along answers, at the temperature they were asked for."""

    def __init__(self, target: LoadedTarget, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        """prompts: token ids, of two or more tokens each. num_tokens: of the longest answer."""
        model = target.model
        self._prompts = prompts
        self._num_tokens = num_tokens
        self._num_ids = target.num_ids
        self._device = next(model.parameters()).device
        rows = max(len(prompt) for prompt in prompts) + _ANSWERS * num_tokens
        self._memory = KVMemory(probe_geometry(model), rows, self._device)
        self._model = CausalModel(model, self._memory, target.context)

    def transform(self, answers: Sequence[Answer], temperature: float, uniforms: Tensor) -> Tensor:
        """Rosenblatt's transform of every answer: [N, D] float64 in [0, 1].

        uniforms: [N, D] float64 in [0, 1), fresh; they are the result where an answer has ended.
        """
        result = uniforms.clone()
        for number, prompt in enumerate(self._prompts):
            own = [index for index, answer in enumerate(answers) if answer.prompt == number]
            if own:
                self._model.forward(chunk_inputs(list(prompt[:-1]), 0, self._device))
            for start in range(0, len(own), _ANSWERS):
                part = own[start : start + _ANSWERS]
                self._transform_part(prompt, part, answers, temperature, result)
        return result

    def _transform_part(
        self,
        prompt: Sequence[int],
        part: Sequence[int],
        answers: Sequence[Answer],
        temperature: float,
        result: Tensor,
    ) -> None:
        chosen = [answers[index].token_ids for index in part]
        logits = self._model.forward(self._branches(prompt, chosen)).logits[:, : self._num_ids]
        places = [(answer, depth) for answer, ids in enumerate(chosen) for depth in range(len(ids))]
        width = self._num_tokens - 1
        rows = [0 if depth == 0 else answer * width + depth for answer, depth in places]
        tokens = torch.tensor([chosen[answer][depth] for answer, depth in places], device=self._device)
        where = (
            torch.tensor([part[answer] for answer, _ in places]),
            torch.tensor([depth for _, depth in places]),
        )
        law = torch.softmax(logits.double() / temperature, dim=1)
        result[where] = place_in_law(law[rows], tokens, result[where].to(self._device)).cpu()

    def _branches(self, prompt: Sequence[int], chosen: Sequence[tuple[int, ...]]) -> StepInputs:
        """The prompt's last token, and all answers but their last tokens as branches behind it."""
        root, width = len(prompt) - 1, self._num_tokens - 1
        ids = [prompt[-1]]
        for answer in chosen:
            branch = answer[:width]
            ids += [*branch, *[0] * (width - len(branch))]  # what fills up is seen by nobody before it
        count = len(ids)
        mask = torch.zeros(count, root + count, dtype=torch.bool, device=self._device)
        mask[:, : root + 1] = True
        causal = torch.ones(width, width, dtype=torch.bool, device=self._device).tril()
        for start in range(1, count, width or 1):
            mask[start : start + width, root + start : root + start + width] = causal
        depths = [0, *list(range(1, width + 1)) * len(chosen)]
        return StepInputs(
            token_ids=torch.tensor(ids, device=self._device),
            positions=root + torch.tensor(depths, device=self._device),
            rows=root + torch.arange(count, device=self._device),
            segments=(Segment(0, count, 0, root + count, mask),),
            logits_index=torch.arange(count, device=self._device),
        )


def place_in_law(law: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
    """``P(tokens before x) + v P(x)``, most likely tokens first, of equal ones the lowest id: [N] float64.

    law: [N, V] float64. tokens: [N] int64. uniforms: [N] float64.
    """
    own = law.gather(1, tokens[:, None])
    ids = torch.arange(law.shape[1], device=law.device)
    before = (law > own) | ((law == own) & (ids < tokens[:, None]))
    return (law * before).sum(dim=1) + uniforms * own[:, 0]
