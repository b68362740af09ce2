"""The head's layers: position by position they must give what they give for the whole text at once."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule, rotary, rotate

H, HEADS, KV_HEADS, D = 24, 4, 2, 8


def make_module(seed: int = 0) -> HeadModule:
    target = TargetFingerprint("tiny", 50, H, "-", (0.0,))
    torch.manual_seed(seed)
    return HeadModule(HeadConfig(H, HEADS, KV_HEADS, D, 40, 10_000.0, 1e-5, 128, 20, target)).double()


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """``visible [Nq, Nk]`` bool; no batch."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * D**-0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, torch.ones(len(q), len(k)).tril().bool())


class GrowingMemory:
    """Keys and values of everything seen so far, as a server keeps them."""

    def __init__(self) -> None:
        self.keys, self.values = torch.empty(0, KV_HEADS, D).double(), torch.empty(0, KV_HEADS, D).double()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys, self.values = torch.cat([self.keys, k]), torch.cat([self.values, v])
        seen, new = len(self.keys), len(q)
        return attend(q, self.keys, self.values, torch.ones(new, seen).tril(seen - new).bool())


@pytest.mark.parametrize("pieces", [[1] * 9, [4, 1, 3, 1], [8, 1]])
def test_steps_over_a_memory_equal_the_full_forward(pieces: list[int]) -> None:
    module = make_module()
    embedded, hidden = torch.randn(2, 9, H).double()
    positions = torch.arange(9)
    whole = module(embedded, hidden, positions, causal)
    memory = GrowingMemory()
    parts = [
        module(e, h, p, memory)
        for e, h, p in zip(embedded.split(pieces), hidden.split(pieces), positions.split(pieces), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)


def test_every_input_matters_and_no_later_one() -> None:
    module = make_module()
    inputs = torch.randn(2, 6, H).double()
    before = module(*inputs, torch.arange(6), causal)
    for number in range(2):
        changed = inputs.clone()
        changed[number, 3] += 1
        moved = (module(*changed, torch.arange(6), causal) - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [False, False, False, True, True, True]
    moved = (module(*inputs, torch.tensor([0, 1, 2, 3, 4, 9]), causal) - before).abs().amax(-1) > 1e-9
    assert moved.tolist() == [False] * 5 + [True]


def test_the_layer_is_a_llama_layer() -> None:
    """With the same weights, what follows the fusing matrix equals the decoder layer of transformers."""
    module = make_module(1)
    config = LlamaConfig(
        hidden_size=H,
        intermediate_size=40,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=D,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    config._attn_implementation = "eager"
    layer = LlamaDecoderLayer(config, 0).double()
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        getattr(layer.self_attn, name).load_state_dict(getattr(module, name).state_dict())
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).load_state_dict(getattr(module, name).state_dict())
    embedded, hidden = torch.randn(2, 7, H).double()
    positions = torch.arange(3, 10)
    fused = module.fuse(torch.cat([module.embedding_norm(embedded), module.hidden_norm(hidden)], -1))
    turn = LlamaRotaryEmbedding(config)(fused[None], positions[None])
    mask = torch.full((7, 7), -torch.inf).double().triu(1)[None, None]
    theirs = layer(fused[None], attention_mask=mask, position_ids=positions[None], position_embeddings=turn)
    ours = module(embedded, hidden, positions, causal)
    torch.testing.assert_close(
        ours, module.norm(theirs[0]), rtol=0, atol=1e-6
    )  # their angles are float32 too


def test_rotary_depends_on_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, D).double()

    def score(i: int, j: int) -> float:
        turned = [rotate(x, *rotary(torch.tensor([at]), D, 1e4, torch.float64)) for x, at in ((q, i), (k, j))]
        return float((turned[0] * turned[1]).sum())

    assert score(5, 2) == pytest.approx(score(45, 42), abs=1e-5)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)


def test_bfloat16_input_over_float32_weights() -> None:
    module = make_module().float()
    embedded, hidden = torch.randn(2, 5, H).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        low = module(embedded, hidden, torch.arange(5), causal)
    high = module(embedded.float(), hidden.float(), torch.arange(5), causal)
    assert low.dtype == torch.bfloat16
    assert (low.float() - high).abs().max() < 0.1 * high.abs().max()
