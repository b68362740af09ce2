"""Public EAGLE checkpoints: every supported shape against plain torch, and in a running engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from resispec.engine.build import assemble
from resispec.engine.config import EngineConfig
from resispec.engine.load import load_pair
from resispec.engine.request import Request, SamplingParams, SpeculationMode
from resispec.models.base import ModelError, Segment, StepInputs
from resispec.models.causal import CausalModel, chunk_inputs, probe_geometry
from resispec.models.draft_kind import DraftKind, draft_kind
from resispec.models.eagle.checkpoint import load_eagle
from resispec.models.head.step import HeadStepModel
from resispec.models.kv import KVGeometry, KVMemory

TEXT = [3, 14, 15, 9, 26, 5, 35, 8]
BRANCHES = ((7, 21), (7, 30), (12,))  # of drafted tokens


class Reference:
    """An EAGLE head in plain torch, one whole branch at a time, as its authors run it.

    ``x_(i+1)`` goes with the target's state at ``i``, and positions begin at 0 with the second token.
    """

    def __init__(self, shape: Any, tensors: dict[str, Tensor], target: LlamaForCausalLM) -> None:
        self.shape, self.tensors, self.target = shape, tensors, target

    def logits(self, text: list[int], branch: tuple[int, ...]) -> Tensor:
        """[len(text) - 1 + len(branch), V] of the target's whole vocabulary; -inf: never drafted."""
        with torch.no_grad():
            out = self.target(torch.tensor([text]), output_hidden_states=True)
            if self.shape.eagle3:
                wide = torch.cat([out.hidden_states[number][0] for number in self.shape.layers], dim=-1)
                hidden = wide @ self.tensors["fc.weight"].T
            else:
                hidden = out.hidden_states[-1][0]
            read, tokens = hidden[: len(text) - 1], text[1:]
            whole = self.layer(tokens, read)
            for token in branch:  # which reads the state that came out for the token before
                read, tokens = torch.cat([read, whole[-1:]]), [*tokens, token]
                whole = self.layer(tokens, read)
            return self.score(whole)

    def layer(self, tokens: list[int], hidden: Tensor) -> Tensor:
        get = self.tensors.__getitem__
        name = self.shape.layer
        table = self.tensors.get("embed_tokens.weight", self.target.model.embed_tokens.weight)
        embedded = table[torch.tensor(tokens)]
        if self.shape.eagle3:
            normed = norm(hidden, get(f"{name}.hidden_norm.weight"))
            residual = normed if self.shape.norm_before_residual else hidden
            x = torch.cat([norm(embedded, get(f"{name}.input_layernorm.weight")), normed], dim=-1)
        else:
            fuse = self.shape.fuse
            x = torch.cat([embedded, hidden], -1) @ get(f"{fuse}.weight").T
            residual = x = x + self.tensors.get(f"{fuse}.bias", torch.zeros(()))
        count = len(tokens)
        q, k, v = (
            (x @ get(f"{name}.self_attn.{part}_proj.weight").T).view(count, -1, 8) for part in ("q", "k", "v")
        )
        q, k = self.rotate(q), self.rotate(k)
        attended = torch.zeros_like(q)
        for head in range(4):
            scores = q[:, head] @ k[:, head // 2].T * 8**-0.5
            scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
            attended[:, head] = scores.softmax(-1) @ v[:, head // 2]
        x = residual + attended.flatten(1) @ get(f"{name}.self_attn.o_proj.weight").T
        normed = norm(x, get(f"{name}.post_attention_layernorm.weight"))
        gate = normed @ get(f"{name}.mlp.gate_proj.weight").T
        up = normed @ get(f"{name}.mlp.up_proj.weight").T
        return x + (gate * gate.sigmoid() * up) @ get(f"{name}.mlp.down_proj.weight").T

    def rotate(self, x: Tensor) -> Tensor:
        frequencies = 500.0 ** -(torch.arange(0, 8, 2) / 8)
        angles = torch.arange(len(x))[:, None] / self.shape.rope_factor * frequencies
        a, b = x[..., :4], x[..., 4:]
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def score(self, states: Tensor) -> Tensor:
        if not self.shape.eagle3:
            matrix: Tensor = self.target.lm_head.weight
            return states @ matrix.T
        own = norm(states, self.tensors["norm.weight"]) @ self.tensors["lm_head.weight"].T
        if "d2t" not in self.tensors:
            return own
        logits = torch.full((len(states), 40), -torch.inf)
        logits[:, torch.arange(24) + self.tensors["d2t"]] = own
        return logits


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


class Served:
    """The same head on KV memories, as a server runs it."""

    def __init__(self, folder: Path, target: LlamaForCausalLM) -> None:
        head, self.vocab_ids, _ = load_eagle(folder, target, 40, torch.float32)
        own = head.geometry(torch.float32)
        given = probe_geometry(target)
        geometry = KVGeometry(
            given.num_layers, given.num_kv_heads, given.key_dim, given.value_dim, own.hidden_size, given.dtype
        )
        memory = KVMemory(geometry, 64, torch.device("cpu"), keep_hidden=True)
        self.draft = HeadStepModel(head, self.vocab_ids, target, KVMemory(own, 64, torch.device("cpu")))
        self.target = CausalModel(target, memory, 128, head.tap(target))
        self.states = memory.states

    def logits(self, text: list[int], branches: tuple[tuple[int, ...], ...], first: int) -> list[Tensor]:
        """Those after the text's tokens from 1 on, then those of every branch.

        first: tokens of the text that the draft runs in a step of their own.
        """
        kv_start, scored, last = 5, [], torch.empty(0)
        for start, stop in ((0, first), (first, len(text))):
            inputs = chunk_inputs(text[start:stop], start, torch.device("cpu"), kv_start)
            self.target.forward(inputs)
            assert self.states is not None
            hidden = self.states.before(inputs.rows, inputs.positions)
            out = self.draft.forward(with_hidden(inputs, hidden))
            scored.append(out.logits)
            last = out.hidden[-1]
        drafted = (self._branch(len(text), kv_start, branch, last) for branch in branches)
        return [self._whole(logits) for logits in (torch.cat(scored)[1:], *drafted)]

    def _branch(self, length: int, kv_start: int, branch: tuple[int, ...], parent: Tensor) -> Tensor:
        """Each token a level of its own, in scratch rows behind the text."""
        scored = []
        for depth, token in enumerate(branch):
            visible = torch.ones(1, length + 1 + depth, dtype=torch.bool)
            rows = torch.tensor([kv_start + length + depth])
            segment = Segment(0, 1, kv_start, length + 1 + depth, visible)
            position = torch.tensor([length + depth])
            ids, index = torch.tensor([token]), torch.tensor([0])
            out = self.draft.forward(StepInputs(ids, position, rows, (segment,), index, parent[None]))
            scored.append(out.logits)
            parent = out.hidden[0]
        return torch.cat(scored)

    def _whole(self, logits: Tensor) -> Tensor:
        if self.vocab_ids is None:
            return logits
        return torch.full((len(logits), 40), -torch.inf).index_copy(1, self.vocab_ids, logits)


def with_hidden(inputs: StepInputs, hidden: Tensor) -> StepInputs:
    index = torch.arange(len(inputs.token_ids))
    return StepInputs(inputs.token_ids, inputs.positions, inputs.rows, inputs.segments, index, hidden)


@pytest.mark.parametrize("first", [1, 5])
def test_every_shape_says_what_plain_torch_says(
    first: int, shape: Any, eagle: Any, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = eagle.tensors(shape)
    folder = eagle.write(tmp_path / "head", shape.config, tensors, pickled=shape.pickled)
    reference = Reference(shape, tensors, target)
    expected = [reference.logits(TEXT, branch) for branch in BRANCHES]
    text, *branches = Served(folder, target).logits(TEXT, BRANCHES, first)
    torch.testing.assert_close(text, expected[0][: len(TEXT) - 1], rtol=0, atol=1e-4)
    for found, whole in zip(branches, expected, strict=True):
        torch.testing.assert_close(found, whole[len(TEXT) - 1 :], rtol=0, atol=1e-4)
    assert draft_kind(folder) is DraftKind.EAGLE


def test_every_shape_is_served(
    shape: Any, eagle: Any, target: LlamaForCausalLM, target_folder: Path, tmp_path: Path
) -> None:
    """The text is the target's own; with candidates, which a test of a random head cannot ask to be right."""
    folder = eagle.write(tmp_path / "head", shape.config, eagle.tensors(shape), pickled=shape.pickled)
    config = EngineConfig(
        str(target_folder),
        draft=str(folder),
        device="cpu",
        dtype="float32",
        max_model_len=64,
        speculation=SpeculationMode.FIXED,
        max_tree_nodes=8,
        num_threads=1,
    )
    engine = assemble(config, *load_pair(config))
    assert any("public EAGLE head" in note for note in engine.info.notes)
    prompts = {"a": (3, 1, 4), "b": (7,)}
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    for name, prompt in prompts.items():
        engine.add(Request(name, prompt, sampling))
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    drafted = 0
    while engine.has_work:
        for output in engine.step().outputs:
            tokens[output.request_id] += output.token_ids
            if output.metrics is not None:
                assert output.metrics.speculation is not None
                drafted += output.metrics.speculation.num_draft_tokens
    engine.check_integrity()
    for name, prompt in prompts.items():
        ids = target.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None)
        assert tokens[name] == ids[0, len(prompt) :].tolist()
    assert drafted > 100


def edited(shape: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Its configuration, with ``changes`` where its sizes are."""
    inner = shape.config.get("transformer_layer_config")
    if inner is None or not changes.keys() & {"model_type", "hidden_act", "attention_bias", "rope_scaling"}:
        return {**shape.config, **changes}
    return {**shape.config, "transformer_layer_config": {**inner, **changes}}


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (2, {"speculators_model_type": "mlp_speculator"}, "'mlp_speculator'; eagle and eagle3"),
        (2, {"norm_before_fc": True}, "norm_before_fc is set"),
        (4, {"layernorms": True}, "layernorms is set"),
        (2, {"model_type": "qwen3"}, "of the kind 'qwen3'"),
        (2, {"transformer_layer_config": None}, "transformer_layer_config is missing"),
        (2, {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "three layers"),
        (0, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is off"),
        (
            0,
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}},
            "some servers count by it what goes into",
        ),
        (0, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (0, {"attention_bias": True}, "attention_bias is set"),
        (0, {"mlp_bias": True}, "mlp_bias is set"),
        (0, {"use_sliding_window": True}, "use_sliding_window is set"),
        (2, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling is 'dynamic'"),
        (0, {"hidden_size": None}, "hidden_size is None"),
        (0, {"target_hidden_size": 64}, "hidden states of 64, this one's have 32"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    number: int, changes: dict[str, Any], message: str, eagle: Any, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    shape = eagle.shapes[number]
    folder = eagle.write(tmp_path / "head", edited(shape, changes), eagle.tensors(shape))
    with pytest.raises(ModelError, match=message):
        load_eagle(folder, target, 40, torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lm_head.weight": None, "d2t": None}, "lm_head.weight is missing"),
        ({"norm.weight": None}, r"weights are missing: output\.norm\.weight"),
        ({"layers.1.mlp.up_proj.weight": [48, 32]}, r"no use for: layers\.1\.mlp\.up_proj\.weight"),
        ({"input_norm.weight": [96]}, r"no use for: input_norm\.weight"),
        ({"midlayer.mlp.up_proj.weight": [40, 32]}, r"up_proj\.weight is \[40, 32\], not \[48, 32\]"),
        ({"d2t": [23]}, "d2t maps another number of tokens"),
        ({"d2t": None}, "scores 24 tokens and has no d2t"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Any], message: str, eagle: Any, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    shape = eagle.shapes[0]
    tensors = eagle.tensors(shape)
    for name, sizes in changes.items():
        tensors.pop(name, None)
        if sizes is not None:
            tensors[name] = torch.zeros(sizes, dtype=torch.long if name == "d2t" else torch.float32)
    folder = eagle.write(tmp_path / "head", shape.config, tensors)
    with pytest.raises(ModelError, match=message):
        load_eagle(folder, target, 40, torch.float32)


def test_a_token_twice_is_refused(eagle: Any, target: LlamaForCausalLM, tmp_path: Path) -> None:
    tensors = eagle.tensors(eagle.shapes[0])
    tensors["d2t"][5] = tensors["d2t"][4] - 1
    folder = eagle.write(tmp_path / "head", eagle.shapes[0].config, tensors)
    with pytest.raises(ModelError, match="two rows the same token"):
        load_eagle(folder, target, 40, torch.float32)


def test_tokens_that_do_not_exist_are_not_drafted(
    eagle: Any, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    folder = eagle.write(tmp_path / "head", eagle.shapes[0].config, eagle.tensors(eagle.shapes[0]))
    _, whole, _ = load_eagle(folder, target, 40, torch.float32)
    module, cut, _ = load_eagle(folder, target, 20, torch.float32)
    assert whole is not None
    assert cut is not None
    assert cut.tolist() == [token for token in whole.tolist() if token < 20]
    assert len(cut) < len(whole)
    assert module.readout(target, cut, torch.float32)(torch.zeros(1, 32)).shape == (1, len(cut))


def test_a_layer_that_the_target_lacks(eagle: Any, target: LlamaForCausalLM, tmp_path: Path) -> None:
    shape = eagle.shapes[2]
    config = edited(shape, {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]})
    folder = eagle.write(tmp_path / "head", config, eagle.tensors(shape))
    module, _, _ = load_eagle(folder, target, 40, torch.float32)
    with pytest.raises(ModelError, match=r"reads layers \[1, 3, 8\], but the target has 8"):
        module.tap(target)


def test_an_embedding_that_is_the_targets_is_not_kept_twice(
    eagle: Any, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    shape = eagle.shapes[3]
    tensors = eagle.tensors(shape)
    folder = eagle.write(tmp_path / "own", shape.config, tensors)
    module, _, _ = load_eagle(folder, target, 40, torch.float32)
    assert module.embedding(target) is not target.get_input_embeddings()
    tensors["embed_tokens.weight"] = target.model.embed_tokens.weight.clone()
    folder = eagle.write(tmp_path / "shared", shape.config, tensors)
    module, _, _ = load_eagle(folder, target, 40, torch.float32)
    assert module.embedding(target) is target.get_input_embeddings()


@pytest.mark.parametrize("content", [b"", b"neither of both"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_damaged_weights(content: bytes, name: str, target: LlamaForCausalLM, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match="cannot read the weights|holds no tensors"):
        load_eagle(tmp_path, target, 40, torch.float32)
    assert draft_kind(tmp_path) is DraftKind.MODEL
