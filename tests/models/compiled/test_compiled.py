"""Compiled layers: the same results as the layers themselves, and every way of not getting there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.config import ConfigError
from resispec.engine.engine import Engine
from resispec.engine.request import Request, SamplingParams
from resispec.models.compiled.build import Build
from resispec.models.compiled.compilation import Compilation
from resispec.models.compiled.layer import CompiledLayer
from resispec.models.compiled.spec import CannotCompileError, layer_spec
from resispec.models.compiled.state import CompileState
from resispec.models.fit import fit, lay_out
from resispec.models.fuse.layer import FusedLayer

ROOM = 1 << 40  # bytes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all: models of one shape are compiled once."""
    return tmp_path_factory.mktemp("compiled")


def settled(model: Any, root: Path, *, spare_bytes: int = ROOM, quantization: str = "none") -> Compilation:
    geometry = fit(model, 256).geometry
    lay_out(model, quantization, native=False)
    compilation = Compilation(model, geometry, root, threads=1, spare_bytes=spare_bytes)
    compilation.wait()
    compilation.advance()
    return compilation


def layers(model: Any) -> list[FusedLayer]:
    return [part for part in model.modules() if isinstance(part, FusedLayer)]


def requests(tiny: Any, temperature: float) -> list[Request]:
    """Prompts of several lengths; some long enough for windows to matter."""
    return [
        Request(
            str(index),
            tuple((31 * index + 7 * i) % tiny.vocabulary for i in range(length)),
            SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True, seed=index),
        )
        for index, length in enumerate((1, 5, 30, 60))
    ]


def texts(tiny: Any, engine: Engine, temperature: float) -> list[list[int]]:
    """Together, then one alone: steps of many tokens, of some, and of one."""
    wanted = requests(tiny, temperature)
    together = tiny.run(engine, wanted).tokens
    alone = tiny.run(engine, [wanted[2]]).tokens
    return [*together.values(), *alone.values()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafted", [False, True])
def test_the_same_text(tiny: Any, root: Path, drafted: bool, temperature: float) -> None:
    """In float32, with and without trees."""

    def engine(**config: Any) -> Engine:
        draft = LoadedDraft(256, model=tiny.model(1)) if drafted else None
        built: Engine = tiny.engine(tiny.model(0), draft, compiled_folder=root, num_threads=1, **config)
        return built

    compiled = engine(compile=True)
    assert compiled.info.compilation.state == "building"
    compiled.settle()
    assert compiled.info.compilation.state == "on"
    assert compiled.info.compilation.note.startswith("The target's 2 layers were ")
    assert texts(tiny, compiled, temperature) == texts(tiny, engine(), temperature)


def test_swapped_in_between_steps(tiny: Any, root: Path) -> None:
    """A request runs on through the swap, which is told once."""
    plain = tiny.run(tiny.engine(tiny.model(0)), requests(tiny, 0.0)).tokens
    engine = tiny.engine(tiny.model(0), compiled_folder=root, compile=True)
    for request in requests(tiny, 0.0):
        engine.add(request)
    tokens: dict[str, list[int]] = {name: [] for name in plain}
    told = []
    for step in range(1000):
        if not engine.has_work:
            break
        if step == 20:
            assert engine._compilation is not None
            engine._compilation.wait()
        result = engine.step()
        told += [(step, result.stats.compilation.state)] if result.stats.compilation else []
        for output in result.outputs:
            tokens[output.request_id] += output.token_ids
    assert len(told) == 1
    assert told[0][0] <= 20
    assert told[0][1] is CompileState.ON
    assert tokens == plain


def test_swapped_in_without_requests(tiny: Any, root: Path) -> None:
    engine = tiny.engine(tiny.model(0), compiled_folder=root, compile=True)
    assert engine.look_again is not None
    engine._compilation.wait()
    assert engine.has_work
    assert engine.step().stats.compilation.state is CompileState.ON
    assert not engine.has_work
    assert engine.look_again is None


@pytest.mark.slow
@pytest.mark.timeout(900)  # a C++ compiler on a busy machine
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "gemma3_text"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_families(tiny: Any, root: Path, family: str, dtype: torch.dtype) -> None:
    """Biases, norms of heads, windows, norms after; the check compares logits of all kinds of steps."""
    model = tiny.model(0, family).to(dtype)
    assert settled(model, root).status.state is CompileState.ON
    assert all(layer.compiled is not None for layer in layers(model))


@pytest.mark.slow
def test_without_room_for_plain_weights(tiny: Any, root: Path) -> None:
    model = tiny.model(0).to(torch.bfloat16)
    compilation = settled(model, root, spare_bytes=0)
    assert compilation.status.state is CompileState.ON
    assert {spec.weights for spec in compilation._specs.values()} == {"packed"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8(tiny: Any, root: Path, dtype: torch.dtype) -> None:
    """Steps of one token are compiled, others stay what they are; the check has both."""
    model = tiny.model(0).to(dtype)
    compilation = settled(model, root, quantization="int8")
    assert compilation.status.state is CompileState.ON
    assert compilation._specs.keys() == {"single"}


@pytest.mark.slow
def test_int8_text(tiny: Any, root: Path) -> None:
    def engine(**config: Any) -> Engine:
        built: Engine = tiny.engine(
            tiny.model(0), compiled_folder=root, num_threads=1, quantization="int8", **config
        )
        return built

    compiled = engine(compile=True)
    compiled.settle()
    assert compiled.info.compilation.state == "on"
    assert texts(tiny, compiled, 0.0) == texts(tiny, engine(), 0.0)


def test_a_second_start_finds_what_the_first_compiled(
    tiny: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settled(tiny.model(0), root).status.state is CompileState.ON
    monkeypatch.setattr(subprocess, "Popen", None)
    again = settled(tiny.model(3), root)
    assert again.status.note.startswith("The target's 2 layers were loaded from the cache")


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("no-such-compiler", "there is no C++ compiler (no-such-compiler)"), ("false", "")],
)
def test_without_a_compiler(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, reason: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    engine = tiny.engine(tiny.model(0), compiled_folder=tmp_path, compile=True)
    engine.settle()
    status = engine.info.compilation
    assert status.state is CompileState.FAILED
    assert status.note.startswith(f"The target's layers stay as they are: {reason}")
    assert "\n" not in status.note
    assert list(tmp_path.iterdir()) == []
    plain = tiny.engine(tiny.model(0))
    assert texts(tiny, engine, 0.0) == texts(tiny, plain, 0.0)


def test_other_results_are_dropped(tiny: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CompiledLayer.run

    def wrong(self: CompiledLayer, *args: Any) -> Any:
        done = run(self, *args)
        return done if done is None else 1.01 * done

    monkeypatch.setattr(CompiledLayer, "run", wrong)
    model = tiny.model(0)
    status = settled(model, root).status
    assert status.state is CompileState.FAILED
    assert "failed their check when compiled: its logits differ by" in status.note
    assert all(layer.compiled is None for layer in layers(model))


def test_a_damaged_file_is_said_and_compiled_anew(tiny: Any, root: Path, tmp_path: Path) -> None:
    assert settled(tiny.model(0), root).status.state is CompileState.ON
    damaged = [tmp_path / whole.name for whole in root.iterdir() if whole.is_dir()]
    for folder in damaged:
        folder.mkdir()
        for path in (root / folder.name).iterdir():
            (folder / path.name).write_bytes(b"damaged")
    status = settled(tiny.model(0), tmp_path).status
    assert status.state is CompileState.FAILED
    assert "what was compiled cannot be loaded" in status.note
    assert sum(not folder.exists() for folder in damaged) == 1


def test_layers_of_no_known_kind(tiny: Any, tmp_path: Path) -> None:
    status = settled(tiny.model(0, "gpt2"), tmp_path).status
    assert status.state is CompileState.FAILED
    assert status.note == "The target's layers stay as they are: 2 of 2 are of no known kind."


def test_an_unknown_activation(tiny: Any) -> None:
    model = tiny.model(0)
    fit(model, 256)
    (layer, _) = layers(model)
    layer.mlp.activation = torch.nn.Tanh()
    with pytest.raises(CannotCompileError, match="activation"):
        layer_spec(layer, torch.float32, 1)


def test_int4_is_refused(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int4; use int8 or none") as error:
        tiny.engine(tiny.model(0), compiled_folder=tmp_path, compile=True, quantization="int4")
    assert error.value.setting == "compile"


def test_left_overs_of_killed_processes(tiny: Any, root: Path, tmp_path: Path) -> None:
    import os

    old, fresh = tmp_path / ".tmp-old", tmp_path / ".tmp-fresh"
    old.mkdir()
    fresh.mkdir()
    os.utime(old, (0, 0))
    model = tiny.model(0)
    fit(model, 256)
    build = Build({"end": layer_spec(layers(model)[0], torch.float32, 1)}, tmp_path)
    build.stop()
    with pytest.raises(Exception, match="exit code"):
        build.run()
    assert not old.exists()
    assert fresh.exists()
