"""Any causal language model of transformers, run in packed steps over the KV memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import ATTENTION_NAME, STEP_KEYWORD, CacheShape, StepContext, register_attention
from .base import ModelError, Segment, StepInputs, StepOutputs
from .kv import KVGeometry, KVMemory
from .pack import pack_linears


def chunk_inputs(token_ids: list[int], start: int, device: torch.device, kv_start: int = 0) -> StepInputs:
    """One request's chunk of consecutive tokens at positions ``start ..``, logits for all of them."""
    positions = torch.arange(start, start + len(token_ids), device=device)
    return StepInputs(
        token_ids=torch.tensor(token_ids, device=device),
        positions=positions,
        rows=kv_start + positions,
        segments=(Segment(0, len(token_ids), kv_start, start + len(token_ids)),),
        logits_index=torch.arange(len(token_ids), device=device),
    )


class _GeometryProbe(CacheShape):
    """A stand-in for a KV memory that notes what a model writes to it."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer] = (keys.shape[1], keys.shape[3], values.shape[3])
        return keys, values


@torch.inference_mode()
def probe_geometry(model: Any) -> KVGeometry:
    """Run one token through ``model`` to see what it keeps per token. Raises ModelError."""
    probe = _GeometryProbe()
    device = next(model.parameters()).device
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    previous = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        model(input_ids=zero, position_ids=zero, cache=probe, use_cache=True)
    finally:
        model.set_attn_implementation(previous)
    shapes = set(probe.shapes.values())
    if len(shapes) != 1 or sorted(probe.shapes) != list(range(len(probe.shapes))):
        kept = "different state in different layers" if shapes else "no KV cache"
        raise ModelError(
            f"{type(model).__name__} keeps {kept}; only "
            "decoders with the same KV heads in every layer are supported"
        )
    kv_heads, key_dim, value_dim = shapes.pop()
    output = model.get_output_embeddings()
    return KVGeometry(
        len(probe.shapes), kv_heads, key_dim, value_dim, int(output.weight.shape[1]), model.dtype
    )


class CausalModel:
    """A `StepModel` around an unmodified transformers model."""

    needs_hidden = False
    vocab_ids: Tensor | None = None

    def __init__(self, model: Any, memory: KVMemory, max_positions: int) -> None:
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        self.model = model
        self.memory = memory
        self._max_positions = max_positions
        self._last_hidden: Tensor | None = None
        # The hidden states the output matrix reads, before rows are picked for logits.
        model.get_decoder().register_forward_hook(self._keep_hidden)

    @property
    def max_positions(self) -> int:
        return self._max_positions

    def _keep_hidden(self, _module: Any, _args: Any, output: Any) -> None:
        self._last_hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutputs:
        step = StepContext(self.memory, inputs)
        output = self.model(
            input_ids=inputs.token_ids[None],
            position_ids=inputs.positions[None],
            cache=step,
            use_cache=True,
            logits_to_keep=inputs.logits_index,
            **{STEP_KEYWORD: step},
        )
        hidden, self._last_hidden = self._last_hidden, None
        assert hidden is not None
        hidden = hidden[0]
        if self.memory.hidden is not None:
            self.memory.hidden.index_copy_(0, inputs.rows, hidden.to(self.memory.hidden.dtype))
        return StepOutputs(output.logits[0].float(), hidden)

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        self.memory.move_rows(source, destination)

    def pack(self) -> None:
        """Lay the weights out for the CPU's kernels. The model's plain weights are gone afterwards."""
        pack_linears(self.model)


@torch.inference_mode()
def check_attention(model: Any, geometry: KVGeometry, max_positions: int) -> None:
    """Refuse a model whose outputs on the KV memory differ from its own plain forward.

    Runs some tokens in two chunks and a small tree, beside transformers' eager attention. Raises
    ModelError with the size of the difference.
    """
    device = next(model.parameters()).device
    length = min(24, max_positions)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    ids = [(7919 * i + 13) % vocabulary for i in range(length)]
    model.set_attn_implementation("eager")
    plain = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0].float()
    packed = CausalModel(model, KVMemory(geometry, length + 8, device), max_positions)
    half = length // 2
    first = packed.forward(chunk_inputs(ids[:half], 0, device, kv_start=3))
    # The second half as a tree: a chain, each node behind a sibling that it must not see.
    second = packed.forward(_decoyed_chain(ids[half:], half, device, kv_start=3, vocabulary=vocabulary))
    ours = torch.cat([first.logits, second.logits])
    error = float((ours - plain).norm() / plain.norm().clamp_min(1e-9))
    limit = 1e-3 if geometry.dtype == torch.float32 else 5e-2
    if not error <= limit:
        raise ModelError(
            f"{type(model).__name__} gives other results on the server's KV memory than on its own "
            f"(relative difference {error:.1e}, allowed {limit:.0e}); it cannot be served"
        )


def _decoyed_chain(
    ids: list[int], start: int, device: torch.device, *, kv_start: int, vocabulary: int
) -> StepInputs:
    """A tree whose path is ``ids``, with one decoy beside the first node; logits for the path only."""
    count = len(ids)
    tokens = [(ids[0] + 1) % vocabulary, *ids]
    mask = torch.zeros(count + 1, start + count + 1, dtype=torch.bool, device=device)
    mask[:, :start] = True
    mask[0, start] = True
    mask[1:, start + 1 :] = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    positions = torch.tensor([start, *range(start, start + count)], device=device)
    return StepInputs(
        token_ids=torch.tensor(tokens, device=device),
        positions=positions,
        rows=kv_start + start + torch.arange(count + 1, device=device),
        segments=(Segment(0, count + 1, kv_start, start + count + 1, mask),),
        logits_index=torch.arange(1, count + 1, device=device),
    )
