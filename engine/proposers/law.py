"""The draft's own law at the nodes it expanded, kept for requests whose steps are traced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """The softmax of the draft's logits at ``F`` nodes, before heads were chosen and anything was cut."""

    logits: Tensor  # [F, Vd] float32
    temperature: Tensor  # [F] float64; 0, greedy, counts as 1
    vocab_ids: Tensor | None  # [Vd] int64: the target's ids of the draft's; None: the same

    def probs(self, tokens: Tensor) -> Tensor:
        """Of ``tokens`` [F, S], in the target's ids: [F, S] float64; NaN for what the draft does not know."""
        temperature = torch.where(self.temperature > 0, self.temperature, 1.0)
        law = (self.logits.double() / temperature[:, None]).softmax(dim=1)
        if self.vocab_ids is None:
            known = (tokens >= 0) & (tokens < law.shape[1])
            index = torch.where(known, tokens, 0)
        else:
            equal = self.vocab_ids == tokens[:, :, None]
            known, index = equal.any(dim=2), equal.to(torch.uint8).argmax(dim=2)
        return torch.where(known, law.gather(1, index), torch.nan)
