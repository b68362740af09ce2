"""From a target's folder to a head that loads, the way the command goes."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from resispec.engine.build import assemble
from resispec.engine.config import EngineConfig
from resispec.engine.load import load_pair
from resispec.engine.request import Request, SamplingParams, SpeculationMode
from resispec.models.base import ModelError
from resispec.models.distill.run import DistillSettings, distill
from resispec.models.head.checkpoint import load_head
from resispec.models.head.fingerprint import check_head
from resispec.models.head.module import HeadModule

QUIET = Console(quiet=True)
WORDS = [f"w{number}" for number in range(30)]


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(target: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(target, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generator = random.Random(0)
    lines = [
        json.dumps({"prompt": [number], "output": generator.choices(range(30), range(30, 0, -1), k=20)})
        for number in range(30)
    ]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    return tmp_path / "text.jsonl"


def settings(folder: Path, tmp_path: Path, **changes: Any) -> DistillSettings:
    values: dict[str, Any] = {
        "steps": 4,
        "vocab": 12,
        "dtype": "float32",
        "device": "cpu",
        "out": tmp_path / "head",
    }
    return DistillSettings(target=str(folder), **(values | changes))


def test_a_head_comes_out_and_fits_its_target(
    folder: Path, target: LlamaForCausalLM, data: Path, tmp_path: Path
) -> None:
    out = distill(settings(folder, tmp_path, data=(data,)), QUIET)
    module, vocab_ids = load_head(out)
    check_head(module.config, target, PreTrainedTokenizerFast.from_pretrained(folder))
    assert len(vocab_ids) == module.config.draft_vocab_size == 12
    assert module.config.max_positions == target.config.max_position_embeddings
    assert target.config.rope_parameters is not None
    assert target.config.rope_parameters is not None
    assert module.config.rope_theta == target.config.rope_parameters["rope_theta"]
    assert module.config.target.name == "tiny"
    card = (out / "README.md").read_text()
    for part in ("license: other", "--steps 4 --vocab 12 --seed 0", "| 3 | 0.", "text.jsonl", "4 steps"):
        assert part in card
    assert str(tmp_path) not in card + (out / "config.json").read_text()


def test_the_target_writes_its_own_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("w1 w2 w3\nw4 w5\nw6\nw7 w8\n")
    out = distill(
        settings(folder, tmp_path, generate_tokens=900, prompts=tmp_path / "p.txt", max_tokens=40), QUIET
    )
    written = (tmp_path / "head.work" / "generated.jsonl").read_text().splitlines()
    assert sum(len(json.loads(line)["output"]) for line in written) >= 900
    assert "900 tokens written by the target after p.txt" in (out / "README.md").read_text()


def test_a_run_is_resumed_only_when_asked_and_only_its_own(folder: Path, data: Path, tmp_path: Path) -> None:
    distill(settings(folder, tmp_path, data=(data,)), QUIET)
    with pytest.raises(ModelError, match="--resume"):
        distill(settings(folder, tmp_path, data=(data,)), QUIET)
    with pytest.raises(ModelError, match="other settings"):
        distill(settings(folder, tmp_path, data=(data,), vocab=11, resume=True), QUIET)
    distill(settings(folder, tmp_path, data=(data,), steps=6, resume=True), QUIET)
    state = torch.load(tmp_path / "head.work" / "training.pt", weights_only=True)
    assert state["step"] == 6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "llama"}, "head and model"),
        ({"layers": 1}, "layers goes with kind model"),
        ({"kind": "model"}, "vocab goes with kind head"),
        ({"kind": "model", "vocab": None, "layers": 2}, "the target has 2, so a draft has 1 to 1 of them"),
        ({"save_minutes": -1.0}, "save_minutes"),
        ({"dtype": "float16"}, "dtype"),
        ({"vocab": 0}, "vocab"),
        ({"target_layers": (0, 2)}, r"reads layers \[0, 2\], but the target has 2"),
        ({"target_layers": (1, 1)}, "each layer once"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"kind": "model", "vocab": None, "intermediate_size": 32}, "intermediate_size goes with kind head"),
        ({"kind": "model", "vocab": None, "target_layers": (1,)}, "target_layers goes with kind head"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"steps": None}, "steps or minutes"),
        ({"device": "toaster"}, "toaster"),
        ({"target": "no such/place/here"}, "no such/place/here"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    wrong: dict[str, Any], message: str, folder: Path, data: Path, tmp_path: Path
) -> None:
    target = wrong.get("target", folder)
    rest = {name: value for name, value in wrong.items() if name != "target"}
    with pytest.raises(ModelError, match=message):
        distill(settings(target, tmp_path, data=(data,), **rest), QUIET)
    assert not (tmp_path / "head").exists()


def test_a_target_that_scales_its_logits_is_refused(data: Path, tmp_path: Path) -> None:
    config = GraniteConfig(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        logits_scaling=4.0,
    )
    scaled = save(GraniteForCausalLM(config), tmp_path / "granite")
    with pytest.raises(ModelError, match="logits"):
        distill(settings(scaled, tmp_path, data=(data,)), QUIET)


def test_a_target_without_access_to_its_states_is_refused(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "get_output_embeddings", lambda _: None)
    with pytest.raises(ModelError, match="LlamaForCausalLM gives no access to its hidden states"):
        distill(settings(folder, tmp_path, data=(data,)), QUIET)
    assert not (tmp_path / "head").exists()


def test_an_empty_corpus_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ModelError, match="needs at least two different prompts"):
        distill(settings(folder, tmp_path, data=(tmp_path / "empty.jsonl",)), QUIET)
    assert not (tmp_path / "head").exists()


def test_a_head_is_trained_further(folder: Path, data: Path, tmp_path: Path) -> None:
    settings = DistillSettings(target=str(folder), out=tmp_path / "first", data=(data,), steps=2, vocab=20)
    first, _ = load_head(distill(settings, QUIET))
    again = dataclasses.replace(
        settings, out=tmp_path / "second", start_from=tmp_path / "first", vocab=16, seed=1
    )
    # One step at the very end of its schedule hardly moves the weights: they are the earlier ones.
    second, ids = load_head(distill(dataclasses.replace(again, steps=1), QUIET))
    assert len(ids) == 16
    fresh, _ = load_head(
        distill(dataclasses.replace(settings, out=tmp_path / "fresh", steps=1, seed=1), QUIET)
    )

    def apart(module: HeadModule) -> float:
        return float((module.q_proj.weight.float() - first.q_proj.weight.float()).norm())

    assert apart(second) < apart(fresh)


def test_a_head_learns_to_read_layers_and_begins_where_it_was(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    run = settings(folder, tmp_path, data=(data,), steps=2, learning_rate=1e-9)
    first, _ = load_head(distill(run, QUIET))
    more = dataclasses.replace(
        run, out=tmp_path / "more", start_from=tmp_path / "head", target_layers=(1, 0), steps=1
    )
    out = distill(more, QUIET)
    second, _ = load_head(out)
    assert second.config.target_layers == (1, 0)
    inputs = torch.randn(3, 32).bfloat16()
    last = torch.randn(3, 16).bfloat16()
    torch.testing.assert_close(second.joined(last, inputs), last, rtol=0, atol=0.02)
    assert torch.equal(second.fuse.weight, first.fuse.weight)
    card = (out / "README.md").read_text()
    assert "--target-layer 1 --target-layer 0 --start-from head" in card
    assert "--learning-rate 1e-09" in card
    assert "what goes into its layers 1, 0 (counted from 0)" in card
    fewer = dataclasses.replace(more, out=tmp_path / "fewer", start_from=out, target_layers=(1,))
    with pytest.raises(ModelError, match=r"reads target_layers \[1, 0\], the new one is to read \[1\]"):
        distill(fewer, QUIET)


def test_a_head_is_widened_and_begins_where_it_was(folder: Path, data: Path, tmp_path: Path) -> None:
    run = settings(folder, tmp_path, data=(data,), intermediate_size=20)
    earlier, vocab_ids = load_head(distill(run, QUIET), dtype=torch.float32)
    again = {"data": (data,), "start_from": tmp_path / "head"}
    # One step so small that weights stay as they are.
    wide = settings(
        folder, tmp_path, out=tmp_path / "wide", intermediate_size=40, steps=1, learning_rate=1e-30, **again
    )
    out = distill(wide, QUIET)
    module, ids = load_head(out, dtype=torch.float32)
    assert (earlier.config.intermediate_size, module.config.intermediate_size) == (20, 40)
    assert module.up_proj.weight[20:].abs().sum() > 0
    assert torch.equal(ids, vocab_ids)
    given = torch.randn(6, 16), torch.randn(6, 16), torch.arange(6)
    states = [head(*given, lambda q, k, v: v.repeat_interleave(2, dim=-2)) for head in (earlier, module)]
    torch.testing.assert_close(*states)
    assert "--intermediate-size 40 --start-from head" in (out / "README.md").read_text()

    longer = distill(dataclasses.replace(wide, steps=3, resume=True), QUIET)
    assert "3 steps" in (longer / "README.md").read_text()
    kept, _ = load_head(distill(settings(folder, tmp_path, out=tmp_path / "kept", steps=1, **again), QUIET))
    assert kept.config.intermediate_size == 20
    narrow = settings(folder, tmp_path, out=tmp_path / "narrow", intermediate_size=12, **again)
    with pytest.raises(ModelError, match="intermediate_size is 12, .* has 20; give as much or more"):
        distill(narrow, QUIET)
    assert not (tmp_path / "narrow").exists()


def test_a_head_of_another_target_is_not_trained_further(folder: Path, data: Path, tmp_path: Path) -> None:
    other = LlamaConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    elsewhere = save(LlamaForCausalLM(other), tmp_path / "elsewhere")
    settings = DistillSettings(target=str(elsewhere), out=tmp_path / "first", data=(data,), steps=1, vocab=20)
    distill(settings, QUIET)
    wrong = dataclasses.replace(
        settings, target=str(folder), out=tmp_path / "second", start_from=tmp_path / "first"
    )
    with pytest.raises(ModelError, match="this draft head belongs to"):
        distill(wrong, QUIET)
    assert not (tmp_path / "second").exists()


def test_a_small_model_is_served_as_a_draft(
    folder: Path, target: LlamaForCausalLM, data: Path, tmp_path: Path
) -> None:
    """From the target to a draft that loads like any model, and answers that are the target's own."""
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Tiny")
    run = settings(folder, tmp_path, data=(data,), kind="model", layers=1, vocab=None)
    out = distill(run, QUIET)
    card = (out / "README.md").read_text()
    for part in (
        "license: mit",
        "--kind model --layers 1 --data text.jsonl --steps 4 --seed 0",
        "Layers 1 of the target",
        "covers 100.0%",
    ):
        assert part in card
    assert "| 2 |" not in card
    config = EngineConfig(
        str(folder),
        draft=str(out),
        device="cpu",
        dtype="float32",
        max_model_len=64,
        num_threads=1,
        speculation=SpeculationMode.FIXED,
    )
    engine = assemble(config, *load_pair(config))
    engine.add(Request("a", (3, 1, 4), SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)))
    tokens: list[int] = []
    drafted = 0
    while engine.has_work:
        for output in engine.step().outputs:
            tokens += output.token_ids
            if output.metrics is not None and output.metrics.speculation is not None:
                drafted = output.metrics.speculation.num_draft_tokens
    assert drafted > 0
    ids = target.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert tokens == ids[0, 3:].tolist()
    resumed = distill(dataclasses.replace(run, steps=6, resume=True), QUIET)
    assert "6 steps" in (resumed / "README.md").read_text()
