"""A small target and synthetic EAGLE checkpoints for it, in every supported shape."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB, HIDDEN, LAYERS = 40, 32, 8
HEADS, KV_HEADS, DIM, WIDTH = 4, 2, 8, 48
LAYER_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500.0,
    "num_hidden_layers": 1,
}


@dataclass(frozen=True)
class Shape:
    """A kind of checkpoint."""

    name: str
    config: dict[str, Any]
    layer: str  # prefix of its layer's tensors
    eagle3: bool
    fuse: str = "fc"
    pickled: bool = False
    draft_vocab: int | None = None  # its map of the vocabulary
    own_embedding: int | None = None  # its width
    fuse_bias: bool = False
    layers: tuple[int, ...] = (2, 4, 5)
    norm_before_residual: bool = False
    rope_factor: float = 1.0
    extra: dict[str, list[int]] = field(default_factory=dict)  # tensors of no use, by shape


def speculators(kind: str, layer: dict[str, Any], **more: Any) -> dict[str, Any]:
    verifier = {"name_or_path": "someone/tiny", "architectures": ["LlamaForCausalLM"]}
    inner = {"model_type": "llama", **LAYER_SIZES, **layer}
    return {
        "speculators_model_type": kind,
        "transformer_layer_config": inner,
        "speculators_config": {"algorithm": kind, "verifier": verifier},
        **more,
    }


SHAPES = (
    Shape(
        "original eagle3",
        {**LAYER_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "draft_vocab_size": 24},
        "midlayer",
        eagle3=True,
        pickled=True,
        draft_vocab=24,
    ),
    Shape(
        "original eagle3, narrower than its target",
        {**LAYER_SIZES, "hidden_size": 16, "target_hidden_size": HIDDEN, "draft_vocab_size": VOCAB},
        "midlayer",
        eagle3=True,
        own_embedding=16,
    ),
    Shape(
        "speculators eagle3",
        speculators(
            "eagle3",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            draft_vocab_size=24,
            norm_before_residual=True,
            eagle_aux_hidden_state_layer_ids=[1, 3, 6],
        ),
        "layers.0",
        eagle3=True,
        draft_vocab=24,
        layers=(1, 3, 6),
        norm_before_residual=True,
        rope_factor=2.0,
        extra={"verifier_norm.weight": [HIDDEN]},
    ),
    Shape("original eagle", LAYER_SIZES, "layers.0", eagle3=False, own_embedding=HIDDEN, fuse_bias=True),
    Shape(
        "speculators eagle",
        speculators("eagle", {}, layernorms=False, fusion_bias=False),
        "transformer",
        eagle3=False,
        fuse="fusion_fc",
    ),
)


def tensors_of(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).mul(float(sizes[-1]) ** -0.5)

    size = shape.own_embedding if shape.own_embedding and shape.eagle3 else HIDDEN
    read = 2 * size if shape.eagle3 else size
    tensors = {
        f"{shape.fuse}.weight": random(size, 3 * HIDDEN if shape.eagle3 else 2 * size),
        f"{shape.layer}.self_attn.q_proj.weight": 2 * random(HEADS * DIM, read),
        f"{shape.layer}.self_attn.k_proj.weight": 2 * random(KV_HEADS * DIM, read),
        f"{shape.layer}.self_attn.v_proj.weight": random(KV_HEADS * DIM, read),
        f"{shape.layer}.self_attn.o_proj.weight": random(size, HEADS * DIM),
        f"{shape.layer}.post_attention_layernorm.weight": 1 + random(size),
        f"{shape.layer}.mlp.gate_proj.weight": random(WIDTH, size),
        f"{shape.layer}.mlp.up_proj.weight": random(WIDTH, size),
        f"{shape.layer}.mlp.down_proj.weight": random(size, WIDTH),
    }
    if shape.fuse_bias:
        tensors[f"{shape.fuse}.bias"] = random(size)
    if shape.own_embedding:
        tensors["embed_tokens.weight"] = 3 * random(VOCAB, size)
    if shape.eagle3:
        tensors[f"{shape.layer}.input_layernorm.weight"] = 1 + random(size)
        tensors[f"{shape.layer}.hidden_norm.weight"] = 1 + random(size)
        tensors["norm.weight"] = 1 + random(size)
        tensors["lm_head.weight"] = 4 * random(shape.draft_vocab or VOCAB, size)
    if shape.draft_vocab:
        ids = torch.randperm(VOCAB, generator=generator)[: shape.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(shape.draft_vocab)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return tensors | {name: torch.ones(sizes) for name, sizes in shape.extra.items()}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, pickled: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


@dataclass(frozen=True)
class Eagle:
    """For test modules, which cannot import this one."""

    shapes: tuple[Shape, ...] = SHAPES
    tensors: Callable[[Shape], dict[str, Tensor]] = tensors_of
    write: Callable[..., Path] = write


@pytest.fixture
def eagle() -> Eagle:
    return Eagle()


@pytest.fixture(params=SHAPES, ids=[shape.name for shape in SHAPES])
def shape(request: pytest.FixtureRequest) -> Shape:
    chosen: Shape = request.param
    return chosen


def make_target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**{**LAYER_SIZES, "num_hidden_layers": LAYERS, "initializer_range": 0.2})
    config.bos_token_id, config.eos_token_id = 0, 1
    model = LlamaForCausalLM(config)
    model.requires_grad_(False).eval()
    return model


@pytest.fixture
def target() -> LlamaForCausalLM:
    """A new one for every test: an engine changes it."""
    return make_target()


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target") / "tiny"
    make_target().save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCAB)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0").save_pretrained(folder)
    return folder
