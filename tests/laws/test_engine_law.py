"""The running engine's sampled text has the target's joint law: chi-square against the exact law.

Each test samples thousands of short answers from a tiny pair and compares the joint frequencies of the
first four tokens with the law computed from transformers' own forward. False-alarm rate of a test: 1e-6;
the seeds are fixed, so a pass stays a pass (but where trees depend on times).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from transformers import LlamaConfig

from resispec.engine.build import LoadedDraft
from resispec.engine.drawing import Drawing
from resispec.engine.request import Request, SamplingParams, SpeculationMode
from resispec.engine.sampling.draw import Residual
from resispec.engine.sampling.uniforms import stream_key
from resispec.engine.sources.base import Path
from resispec.engine.sources.factory import SourceFactory
from resispec.engine.sources.request_sources import RequestSources
from resispec.engine.verifiers import table
from resispec.engine.verifiers.base import Decision, Proposal, TargetLaw
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.resispec_tree import ResiSpecTreeVerifier
from resispec.models.eagle.config import EAGLE3, EagleConfig
from resispec.models.eagle.module import EagleModule
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule
from resispec.models.medusa import MedusaHeads

from .truncation import truncated

V = 5
LENGTH = 4
PROMPT = (3, 1, 4)
FALSE_ALARM = 1e-6


def target(tiny: Any, **sizes: int) -> Any:
    return tiny.model(0, vocab_size=V, **sizes)


def draft(tiny: Any, kind: str, **sizes: int) -> LoadedDraft:
    if kind == "model":
        return LoadedDraft(256, model=tiny.model(7, vocab_size=V, num_hidden_layers=1, **sizes))
    torch.manual_seed(3)
    if kind == "medusa":
        return LoadedDraft(256, medusa=MedusaHeads(3, 1, 32, V).requires_grad_(False).eval())
    if kind == "eagle3":
        layer = LlamaConfig(hidden_size=32, intermediate_size=64, num_attention_heads=4, vocab_size=V)
        eagle = EagleConfig(EAGLE3, layer, False, 32, (0, 1, 1), None)
        module = EagleModule(eagle, own_embedding=True, own_output=4, fuse_bias=False)
        module.requires_grad_(False).eval()
        return LoadedDraft(256, head=module, vocab_ids=torch.tensor([0, 1, 2, 4]))
    size = sizes.get("hidden_size", 32)
    fingerprint = TargetFingerprint("tiny", V, size, "0", (0.0,))
    config = HeadConfig(size, 4, 2, 8, 64, 1e4, 1e-6, 256, 4, fingerprint)
    head = HeadModule(config).requires_grad_(False).eval()
    return LoadedDraft(256, head=head, vocab_ids=torch.tensor([0, 1, 2, 4]))  # 3 is never drafted


def process(logits: Tensor, sampling: SamplingParams) -> np.ndarray:
    """One position's law, written for reading: allowed tokens, temperature, top_k, top_p, min_p."""
    if sampling.allowed_token_ids is not None:
        banned = [token for token in range(V) if token not in sampling.allowed_token_ids]
        logits = logits.index_fill(0, torch.tensor(banned), -torch.inf)
    p = torch.softmax(logits.double() / sampling.temperature, -1).numpy()
    return truncated(p, sampling)


def exact_joint(model: Any, sampling: SamplingParams) -> np.ndarray:
    """P(first LENGTH tokens): array of shape [V] * LENGTH."""
    model.set_attn_implementation("eager")
    joint = np.ones((V,) * LENGTH)
    for depth in range(LENGTH):
        prefixes = list(itertools.product(range(V), repeat=depth))
        batch = torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])
        with torch.inference_mode():
            logits = model(input_ids=batch, use_cache=False).logits[:, -1]
        for prefix, row in zip(prefixes, logits, strict=True):
            law = process(row, sampling).reshape((V,) + (1,) * (LENGTH - depth - 1))
            joint[prefix] = joint[prefix] * law
    return joint


def sample(
    tiny: Any, engine: Any, sampling: dict[str, Any], count: int, first: int = 0, *, seeds: bool = True
) -> np.ndarray:
    counts = np.zeros((V,) * LENGTH)
    for start in range(first, first + count, 500):
        requests = [
            Request(
                str(i),
                PROMPT,
                SamplingParams(max_tokens=LENGTH, ignore_eos=True, seed=i if seeds else None, **sampling),
            )
            for i in range(start, min(start + 500, first + count))
        ]
        for tokens in tiny.run(engine, requests).tokens.values():
            counts[tuple(tokens)] += 1
    return counts


def p_value(counts: np.ndarray, joint: np.ndarray) -> float:
    """Chi-square goodness of fit; cells that expect fewer than 5 are pooled."""
    observed, expected = counts.ravel(), joint.ravel() * counts.sum()
    assert observed[expected == 0].sum() == 0, "an impossible answer was given"
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(chi2.sf(statistic, len(expected) - 1))


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["resispec", "target"])
@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize(("nodes", "depth"), [(3, 3), (9, 3)])
def test_joint_law(tiny: Any, verifier: str, kind: str, nodes: int, depth: int) -> None:
    engine = tiny.engine(
        target(tiny),
        draft(tiny, kind),
        num_ids=V,
        verifier=verifier,
        max_tree_nodes=nodes,
        max_tree_depth=depth,
        max_num_seqs=32,
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 5000), joint) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "head"])
def test_joint_law_with_a_draft_in_8_bits(tiny: Any, kind: str) -> None:
    """In bfloat16, which our kernels want for them; the law is that of the target in the same numbers."""
    sizes = {"hidden_size": 64}
    drafts = draft(tiny, kind, **sizes)
    (drafts.model if kind == "model" else drafts.head).bfloat16()
    engine = tiny.engine(
        target(tiny, **sizes).bfloat16(),
        drafts,
        num_ids=V,
        draft_quantization="int8",
        max_tree_nodes=9,
        max_tree_depth=3,
        max_num_seqs=32,
    )
    assert (engine.info.quantization, engine.info.draft_quantization) == ("none", "int8")
    joint = exact_joint(target(tiny, **sizes).bfloat16(), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 5000), joint) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "nodes"),
    [
        ("resispec-tree", 3),
        ("resispec-tree", 12),
        ("specinfer", 9),
        ("without-replacement", 9),
        ("spectr", 9),
        ("block", 3),
    ],
)
def test_joint_law_of_the_other_verifiers(tiny: Any, verifier: str, nodes: int) -> None:
    engine = tiny.engine(
        target(tiny),
        draft(tiny, "model"),
        num_ids=V,
        verifier=verifier,
        max_tree_nodes=nodes,
        max_num_seqs=32,
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 4000), joint) > FALSE_ALARM


class ManyDraws(ResiSpecTreeVerifier):
    """With draws only, so that a node has several: equal ones, and uneven trees below them."""

    drawing = Drawing.INDEPENDENT


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [6, 12])
def test_joint_law_of_joint_decisions_on_many_draws(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    rules = {**table.VERIFIERS, "resispec-tree": ManyDraws()}
    for module in ("scheduler", "runner.decisions"):
        monkeypatch.setattr(f"resispec.engine.{module}.VERIFIERS", rules)
    engine = tiny.engine(
        target(tiny),
        draft(tiny, "model"),
        num_ids=V,
        verifier="resispec-tree",
        max_tree_nodes=nodes,
        max_num_seqs=32,
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 4000), joint) > FALSE_ALARM


@pytest.mark.slow
def test_the_printed_rule_is_caught(tiny: Any) -> None:
    engine = tiny.engine(
        target(tiny),
        draft(tiny, "model"),
        num_ids=V,
        verifier="resispec-paper",
        allow_inexact=True,
        max_tree_nodes=9,
        max_num_seqs=32,
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 4000), joint) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.6},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.2, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 1.2, "allowed_token_ids": (0, 2, 4), "top_p": 0.9},
    ],
)
def test_joint_law_under_truncation(tiny: Any, sampling: dict[str, Any]) -> None:
    engine = tiny.engine(target(tiny), draft(tiny, "model"), num_ids=V, max_num_seqs=32, max_tree_nodes=8)
    joint = exact_joint(target(tiny), SamplingParams(**sampling))
    assert p_value(sample(tiny, engine, sampling, 4000), joint) > FALSE_ALARM


@pytest.mark.slow
def test_joint_law_alone_and_after_preemption(tiny: Any) -> None:
    sampling = {"temperature": 1.0}
    joint = exact_joint(target(tiny), SamplingParams())
    roomy = tiny.engine(target(tiny), draft(tiny, "model"), num_ids=V, max_tree_nodes=6)
    alone = tiny.engine(target(tiny), draft(tiny, "model"), num_ids=V, max_tree_nodes=6, max_num_seqs=1)
    assert p_value(sample(tiny, alone, sampling, 600), joint) > FALSE_ALARM
    tight = tiny.engine(
        target(tiny),
        draft(tiny, "model"),
        num_ids=V,
        max_tree_nodes=6,
        max_model_len=70,
        kv_memory=roomy.info.kv_bytes_per_row * 112,
    )
    counts = np.zeros((V,) * LENGTH)
    preemptions = 0
    for start in range(0, 600, 6):
        # Long answers, so that rows run out; their first tokens are what is counted.
        requests = [
            Request(str(i), PROMPT, SamplingParams(max_tokens=40, ignore_eos=True, seed=i))
            for i in range(start, start + 6)
        ]
        ran = tiny.run(tight, requests)
        preemptions += sum(output.metrics.num_preemptions for output in ran.last.values())
        for tokens in ran.tokens.values():
            counts[tuple(tokens[:LENGTH])] += 1
    assert preemptions > 50
    assert p_value(counts, joint) > FALSE_ALARM


class Tries:
    """Known candidates at every level: a trie of its own after every text."""

    name = "tries"

    def paths(self, token_ids: Sequence[int], max_tokens: int) -> tuple[Path, ...]:
        rng = random.Random(hash(tuple(token_ids)))
        lengths = [rng.randrange(1, min(max_tokens, 3) + 1) for _ in range(rng.randrange(4))]
        return tuple(
            Path(tuple(rng.randrange(V) for _ in range(n)), tuple(rng.random() for _ in range(n)))
            for n in lengths
        )

    def committed(self, token_ids: Sequence[int], start: int) -> None:
        assert 0 < start < len(token_ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "kind", "nodes", "depth"),
    [
        ("resispec", "model", 9, 3),
        ("resispec", "head", 7, 2),
        ("resispec", None, 6, 1),
        ("resispec-tree", "model", 9, 3),
        ("resispec-tree", None, 6, 1),
        ("specinfer", "model", 9, 3),
        ("target", "model", 9, 3),
    ],
)
def test_joint_law_with_known_candidates(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, verifier: str, kind: str | None, nodes: int, depth: int
) -> None:
    monkeypatch.setattr(SourceFactory, "make", lambda *_: RequestSources([Tries()]))
    engine = tiny.engine(
        target(tiny),
        draft(tiny, kind) if kind else None,
        num_ids=V,
        verifier=verifier,
        proposers=("draft", "ngram"),
        max_tree_nodes=nodes,
        max_tree_depth=depth,
        max_num_seqs=32,
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 2500), joint) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_joint_law_of_public_heads(tiny: Any, kind: str) -> None:
    engine = tiny.engine(
        target(tiny), draft(tiny, kind), num_ids=V, max_tree_nodes=7, max_tree_depth=3, max_num_seqs=32
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 2500), joint) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_joint_law_under_the_controller(tiny: Any, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Without seeds, so that trees depend on the load, on times and on what others kept."""
    keys = itertools.count()
    monkeypatch.setattr("resispec.engine.engine.stream_key", lambda _: stream_key(next(keys)))
    if known:
        monkeypatch.setattr(SourceFactory, "make", lambda *_: RequestSources([Tries()]))
    engine = tiny.engine(
        target(tiny),
        draft(tiny, "model"),
        num_ids=V,
        speculation=SpeculationMode.AUTO,
        baseline_probe_share=0.1,
        proposers=("draft", "ngram"),
        max_num_seqs=8,
    )
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 4000, seeds=False), joint) > FALSE_ALARM


def test_unseeded_requests_are_independent(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0))
    requests = [Request(str(i), (5, 6), SamplingParams(max_tokens=12, ignore_eos=True)) for i in range(40)]
    texts = {tuple(tokens) for tokens in tiny.run(engine, requests).tokens.values()}
    assert len(texts) > 30


@dataclass(frozen=True)
class Credulous:
    """A control: keeps the first child with the naive probability and forgets to correct for it."""

    name: str = "credulous"
    exact: bool = False

    def num_uniforms(self, num_slots: int) -> int:
        return num_slots

    def decide(self, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
        honest = ResiSpecVerifier().decide(law, proposal, uniforms)
        p = law.weights.gather(1, proposal.tokens[:, :1].clamp_min(0))[:, 0].double() / law.total
        eager = (uniforms[:, -1] < 1.3 * p) & (proposal.tokens[:, 0] >= 0)
        return Decision(torch.where(eager, 0, honest.child), honest.threshold)

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        return ResiSpecVerifier().residual(law, proposal, decision)


@pytest.mark.slow
def test_the_test_can_fail(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {**table.VERIFIERS, "resispec": Credulous()}
    for room in ("decisions", "native_walk"):
        monkeypatch.setattr(f"resispec.engine.runner.{room}.VERIFIERS", rules)
    engine = tiny.engine(target(tiny), draft(tiny, "model"), num_ids=V, max_tree_nodes=9, max_num_seqs=32)
    joint = exact_joint(target(tiny), SamplingParams())
    assert p_value(sample(tiny, engine, {"temperature": 1.0}, 3000), joint) < FALSE_ALARM
