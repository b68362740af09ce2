"""Recorded steps against the same steps run as they are.

On a GPU a recording is a CUDA graph. Here it is the same work done again on the same memory, so that
everything around it is tested on any machine: sizes, padding, what is written where, and what is kept.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from resispec.models.attention import StepContext, run_model
from resispec.models.base import Segment, StepInputs, StepOutputs
from resispec.models.causal import CausalModel
from resispec.models.device import Recorder, Recording, device_for
from resispec.models.fit import fit
from resispec.models.graphs.bucket import bucket_for
from resispec.models.graphs.buffers import StepBuffers
from resispec.models.graphs.replay import ReplayedModel
from resispec.models.kv import FLEX, SEGMENTS, KVGeometry, KVMemory

from ...gpu_double import Again, Waits

CPU = torch.device("cpu")
ROWS, SCRATCH = 700, 700
VOCABULARY = 128
ATTENTIONS = [SEGMENTS, FLEX]


@pytest.fixture(autouse=True)
def _flex_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention's own definition in plain operations, without a compiler."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def recorder_for(device: torch.device) -> Recorder:
    return device_for(device).recorder() or Again()


def two_models(
    tiny: Any, family: str, attention: str, device: torch.device = CPU
) -> tuple[ReplayedModel, CausalModel]:
    """The same model twice, on memories of its own: with recordings, and the way without any."""
    model = tiny.model(3, family).to(device)
    geometry = fit(model, 256).geometry
    memories = [
        KVMemory(geometry, ROWS + 1, device, attention=attention),
        KVMemory(geometry, ROWS + 1, device),
    ]
    replayed = ReplayedModel(
        CausalModel(model, memories[0], 256), memories[0], recorder_for(device), scratch_row=SCRATCH
    )
    return replayed, CausalModel(model, memories[1], 256)


def steps(seed: int, device: torch.device) -> Iterator[StepInputs]:
    """Six requests, each at its own place: prompts, then single tokens, chunks and trees in all mixtures."""
    rng = random.Random(seed)
    done = [0] * 6
    for number in range(14):
        sizes: list[tuple[int, int, bool]] = []  # request, tokens, whether they are a tree
        for request in range(6):
            if done[request] == 0:
                sizes.append((request, rng.randrange(1, 20), False))
            elif done[request] < 90 and rng.random() < 0.7:
                sizes.append((request, rng.choice([1, 1, 3, 7, 12]), rng.random() < 0.5))
        if number % 5 == 4:
            sizes = sizes[:1]
        segments: list[Segment] = []
        positions: list[int] = []
        rows: list[int] = []
        for request, length, tree in sizes:
            first, root = request * 110, done[request]
            mask = None
            if tree:
                parents = [rng.randrange(i) for i in range(1, length)]
                mask = torch.eye(length, dtype=torch.bool)
                for node, parent in enumerate(parents, start=1):
                    mask[node] |= mask[parent]
            depths = [root + j for j in range(length)] if mask is None else (root + mask.sum(1) - 1).tolist()
            mask = None if mask is None else mask.to(device)
            segments.append(Segment(len(positions), length, first, root + length, mask))
            positions += depths
            rows += range(first + root, first + root + length)
            done[request] += 1 if tree else length
        count = len(positions)
        wanted = sorted(rng.sample(range(count), rng.randrange(count + 1)))
        yield StepInputs(
            token_ids=torch.tensor([rng.randrange(VOCABULARY) for _ in range(count)], device=device),
            positions=torch.tensor(positions, device=device),
            rows=torch.tensor(rows, device=device),
            segments=tuple(segments),
            logits_index=torch.tensor(wanted, dtype=torch.long, device=device),
        )


def assert_same(ours: StepOutputs, plain: StepOutputs) -> None:
    torch.testing.assert_close(ours.logits, plain.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.hidden, plain.hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "phi3", "gemma3_text", "gpt2"])
def test_the_same_results_and_the_same_rows(
    tiny: Any, family: str, attention: str, device: torch.device
) -> None:
    replayed, plain = two_models(tiny, family, attention, device)
    replayed._memory.keys[:, SCRATCH] = replayed._memory.values[:, SCRATCH] = 7.0
    for inputs in steps(1, device):
        # Twice: the first step of a bucket is recorded, the next is replayed.
        for _ in range(2):
            assert_same(replayed.forward(inputs), plain.forward(inputs))
    assert replayed.num_recordings > 4
    ours, theirs = replayed._memory, plain.memory
    for pool, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        torch.testing.assert_close(pool[:, :ROWS], other[:, :ROWS], rtol=1e-4, atol=1e-4)
        assert pool[:, SCRATCH].isfinite().all()
        assert not (pool[:, SCRATCH] == 7.0).any()  # or nothing was padded, and this tests little


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_rows_of_nobody_stay_as_they_are(tiny: Any, attention: str) -> None:
    replayed, _ = two_models(tiny, "llama", attention)
    memory = replayed._memory
    written = torch.zeros(ROWS + 1, dtype=torch.bool)
    written[SCRATCH] = True
    memory.keys.fill_(7.0)
    memory.values.fill_(7.0)
    for inputs in steps(2, CPU):
        written[inputs.rows] = True
        replayed.forward(inputs)
        replayed.forward(inputs)
    assert (memory.keys[:, ~written] == 7.0).all()
    assert (memory.values[:, ~written] == 7.0).all()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_neighbours_nan_does_not_reach_a_request(tiny: Any, attention: str) -> None:
    """Two requests in the same block of rows, one of them beyond saving."""
    replayed, plain = two_models(tiny, "llama", attention)
    first, *_ = steps(3, CPU)
    expected = plain.forward(first).logits
    embed = replayed._model.model.get_input_embeddings()  # type: ignore[attr-defined]
    bad = int(first.token_ids[0])
    kept = embed.weight[bad].clone()
    embed.weight[bad] = torch.nan
    replayed.forward(first)
    got = replayed.forward(first).logits
    embed.weight[bad] = kept
    own = first.segments[0].length
    touched = {int(t) for s in first.segments for t in range(s.start, s.start + s.length)}
    clean = [
        place
        for place, token in enumerate(first.logits_index.tolist())
        if token >= own and token in touched and bad not in _seen_by(first, token)
    ]
    assert len(clean) > 3
    assert got[[i for i, token in enumerate(first.logits_index.tolist()) if token < own]].isnan().all()
    torch.testing.assert_close(got[clean], expected[clean], rtol=1e-4, atol=1e-4)


def _seen_by(inputs: StepInputs, token: int) -> set[int]:
    """Ids of the tokens of its own request up to a token."""
    segment = next(s for s in inputs.segments if s.start <= token < s.start + s.length)
    return set(inputs.token_ids[segment.start : token + 1].tolist())


def test_results_are_the_callers(tiny: Any) -> None:
    replayed, _ = two_models(tiny, "llama", SEGMENTS)
    given = []
    for inputs in steps(4, CPU):
        for _ in range(2):
            outputs = replayed.forward(inputs)
            given.append((outputs, outputs.logits.clone(), outputs.hidden.clone()))
    for outputs, logits, hidden in given:
        assert torch.equal(outputs.logits, logits)
        assert torch.equal(outputs.hidden, hidden)


def test_a_step_beyond_all_buckets_is_run_as_it_is(tiny: Any) -> None:
    replayed, plain = two_models(tiny, "llama", SEGMENTS)
    count = 100  # more than a request of a bucket has
    inputs = StepInputs(
        token_ids=torch.arange(count) % VOCABULARY,
        positions=torch.arange(count),
        rows=torch.arange(count),
        segments=(Segment(0, count, 0, count),),
        logits_index=torch.tensor([count - 1]),
    )
    assert bucket_for(inputs, SEGMENTS) is None
    assert_same(replayed.forward(inputs), plain.forward(inputs))
    assert replayed.num_recordings == 0
    assert bucket_for(inputs, FLEX) is not None


def test_buckets_are_few_and_pad_little() -> None:
    one = {bucket_for(_tokens(n), FLEX) for n in range(1, 257)}
    assert None not in one
    assert len(one) <= 14
    for n in range(1, 257):
        bucket = bucket_for(_tokens(n), FLEX)
        assert bucket is not None
        assert n <= bucket.tokens <= max(2 * n, 1)


def _tokens(count: int) -> StepInputs:
    """So many requests of one token each."""
    return StepInputs(
        token_ids=torch.zeros(count, dtype=torch.long),
        positions=torch.full((count,), 4),
        rows=torch.arange(count) * 5 + 4,
        segments=tuple(Segment(i, 1, i * 5, 5) for i in range(count)),
        logits_index=torch.arange(count),
    )


def test_recordings_are_dropped_when_the_memory_moves(tiny: Any) -> None:
    """One that is not would go on writing to the old place."""
    replayed, plain = two_models(tiny, "llama", SEGMENTS)
    inputs = _tokens(2)
    for _ in range(2):
        replayed.forward(inputs)
    memory = replayed._memory
    old = memory.keys
    memory.keys, memory.values = memory.keys.clone(), memory.values.clone()
    memory._layers = tuple(zip(memory.keys, memory.values, strict=True))
    old.zero_()
    for _ in range(2):
        assert_same(replayed.forward(inputs), plain.forward(inputs))
    assert not old.any()
    assert replayed._recorder.recorded == 2
    torch.testing.assert_close(memory.keys[:, inputs.rows], plain.memory.keys[:, inputs.rows])


def test_the_recording_used_least_goes_first(tiny: Any) -> None:
    replayed, plain = two_models(tiny, "llama", SEGMENTS)
    replayed._capacity = 2
    for count in (1, 2, 1, 4, 1):
        assert_same(replayed.forward(_tokens(count)), plain.forward(_tokens(count)))
    assert replayed.num_recordings == 2
    assert replayed._recorder.recorded == 3
    replayed.forward(_tokens(2))
    assert replayed._recorder.recorded == 4


class Broken:
    def record(self, run: Callable[[], Any]) -> Recording[Any]:
        raise RuntimeError("operation not permitted when stream is capturing")


class Wrong:
    """What is replayed is another step."""

    def record(self, run: Callable[[], Any]) -> Recording[Any]:
        outputs = run()
        return Recording(StepOutputs(outputs.logits + 1.0, outputs.hidden), lambda: None)


@pytest.mark.parametrize(
    ("recorder", "reason"), [(Broken(), "not permitted"), (Wrong(), "gives other results")]
)
def test_what_fails_is_told_once_and_done_without(
    tiny: Any, recorder: Recorder, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    replayed, plain = two_models(tiny, "llama", SEGMENTS)
    replayed._recorder = recorder
    with caplog.at_level(logging.WARNING):
        for inputs in steps(5, CPU):
            assert_same(replayed.forward(inputs), plain.forward(inputs))
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert replayed.num_recordings == 0


def test_a_step_of_a_bad_request_is_not_recorded(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it end recording for all others."""
    replayed, plain = two_models(tiny, "llama", SEGMENTS)
    embed = replayed._model.model.get_input_embeddings()  # type: ignore[attr-defined]
    kept = embed.weight.clone()
    embed.weight.fill_(torch.nan)
    replayed.forward(_tokens(2))
    assert replayed.num_recordings == 0
    embed.weight.copy_(kept)
    replayed._memory.clear_run(0, ROWS)
    for _ in range(2):
        assert_same(replayed.forward(_tokens(2)), plain.forward(_tokens(2)))
    assert replayed.num_recordings == 1
    assert caplog.records == []


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3_text", "gpt2"])
def test_a_recorded_step_asks_nothing_of_the_host(tiny: Any, family: str, attention: str) -> None:
    model = tiny.model(3, family)
    geometry: KVGeometry = fit(model, 256).geometry
    memory = KVMemory(geometry, ROWS + 1, CPU, attention=attention)
    *_, inputs = steps(6, CPU)
    bucket = bucket_for(inputs, attention)
    assert bucket is not None
    buffers = StepBuffers(bucket, memory, SCRATCH, None)
    buffers.fill(inputs)
    step = CausalModel(model, memory, 256)
    waits = Waits()
    with torch.inference_mode(), waits:
        step.forward(buffers.inputs)
    assert waits.seen == []


def test_the_watch_over_the_host_sees_a_read(tiny: Any) -> None:
    """The test above can fail: attention that the host plans hands over numbers."""
    model = tiny.model(3)
    memory = KVMemory(fit(model, 256).geometry, ROWS, CPU)
    waits = Waits()
    with torch.inference_mode(), waits:
        run_model(model, StepContext(memory, _tokens(3)))
    assert waits.seen != []
