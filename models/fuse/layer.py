"""A decoder layer around a fused attention, called part by part."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from resispec.models.attention import STEP_KEYWORD, StepContext

from .attention import FusedAttention
from .norm import FusedRMSNorm


class LayerRun(Protocol):
    """Something that does a layer's work in its place."""

    def run(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor], step: StepContext
    ) -> Tensor | None:
        """As `FusedLayer.run`; None: the layer itself has to."""
        ...


class FusedLayer(nn.Module):
    """``x + after(attention(before(x)))``, and the same again with the feed-forward block."""

    def __init__(
        self,
        attention: FusedAttention,
        mlp: nn.Module,
        before: tuple[FusedRMSNorm, FusedRMSNorm],
        after: tuple[FusedRMSNorm, FusedRMSNorm] | None,
    ) -> None:
        """before, after: norms of what goes into attention and feed-forward block, and of what comes out."""
        super().__init__()
        self.self_attn = attention
        self.mlp = mlp
        self.before = nn.ModuleList(before)
        self.after = nn.ModuleList(after) if after else None
        self._before, self._after = before, after  # a list of modules takes long to look into
        self.compiled: LayerRun | None = None
        self.native: LayerRun | None = None

    @property
    def norms_before(self) -> tuple[FusedRMSNorm, FusedRMSNorm]:
        """Of what goes into attention and feed-forward block."""
        return self._before

    @property
    def quicker(self) -> LayerRun | None:
        """What does the layer's work in the place of its parts, if it can."""
        return self.compiled or self.native

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """hidden_states: [1, N, H] -> [1, N, H]."""
        return self.run(hidden_states[0], position_embeddings, kwargs[STEP_KEYWORD])[None]

    def run(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, step: StepContext
    ) -> Tensor:
        """hidden: [N, H] -> [N, H]."""
        quicker = self.quicker
        if quicker is not None and position_embeddings is not None:
            done = quicker.run(hidden, position_embeddings, step)
            if done is not None:
                return done
        # `forward` itself: a module's call looks for hooks first, which takes as long as a small kernel.
        first, second = self._before
        attended = self.self_attn.run(first.forward(hidden), position_embeddings, step)
        if self._after is not None:
            attended = self._after[0].forward(attended)
        hidden = hidden + attended
        fed: Tensor = self.mlp.forward(second.forward(hidden))
        if self._after is not None:
            fed = self._after[1].forward(fed)
        return hidden + fed


_PLAIN = ("input_layernorm", "post_attention_layernorm")
_AROUND = (  # what goes in and what comes out
    ("input_layernorm", "pre_feedforward_layernorm"),
    ("post_attention_layernorm", "post_feedforward_layernorm"),
)


def fused_layers(module: Any) -> list[FusedLayer]:
    """What ``module``, whose parts are fused already, may be; empty for one that does not look like it."""
    parts = {name: part for name, part in module.named_children() if not isinstance(part, nn.Dropout)}
    attention, mlp = parts.pop("self_attn", None), parts.pop("mlp", None)
    if type(attention) is not FusedAttention or mlp is None:
        return []
    if not all(type(norm) is FusedRMSNorm for norm in parts.values()):
        return []
    if parts.keys() == set(_PLAIN):
        return [FusedLayer(attention, mlp, _pair(parts, _PLAIN), None)]
    if parts.keys() == {name for names in _AROUND for name in names}:
        return [FusedLayer(attention, mlp, _pair(parts, _AROUND[0]), _pair(parts, _AROUND[1]))]
    return []


def _pair(parts: dict[str, Any], names: tuple[str, str]) -> tuple[FusedRMSNorm, FusedRMSNorm]:
    first, second = (parts[name] for name in names)
    return first, second
