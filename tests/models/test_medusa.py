"""Medusa heads in the common format: against plain torch, in a running engine, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor

from resispec.engine.audit import pair
from resispec.engine.audit.settings import PairSettings
from resispec.engine.build import LoadedDraft
from resispec.engine.config import ConfigError
from resispec.engine.request import Request, SamplingParams, SpeculationParams
from resispec.models.base import ModelError
from resispec.models.draft_kind import DraftKind, draft_kind
from resispec.models.medusa import MedusaHeads, load_medusa

HEADS, BLOCKS, HIDDEN = 3, 2, 32
CONFIG = {"medusa_num_heads": HEADS, "medusa_num_layers": BLOCKS, "base_model_name_or_path": "someone/tiny"}


def checkpoint(vocabulary: int, seed: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            name = f"{head}.{block}.linear"
            tensors[f"{name}.weight"] = torch.randn(HIDDEN, HIDDEN, generator=generator) * HIDDEN**-0.5
            tensors[f"{name}.bias"] = torch.randn(HIDDEN, generator=generator)
        tensors[f"{head}.{BLOCKS}.weight"] = torch.randn(vocabulary, HIDDEN, generator=generator)
    return tensors


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, pickled: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


@pytest.mark.parametrize("pickled", [False, True])
def test_heads_say_what_plain_torch_says(tiny: Any, pickled: bool, tmp_path: Path) -> None:
    tensors = checkpoint(tiny.vocabulary)
    folder = write(tmp_path / "heads", CONFIG, tensors, pickled=pickled)
    heads = load_medusa(folder, tiny.model(0), torch.float32)
    states = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    for head in range(HEADS):
        x = states
        for block in range(BLOCKS):
            y = x @ tensors[f"{head}.{block}.linear.weight"].T + tensors[f"{head}.{block}.linear.bias"]
            x = x + y * y.sigmoid()
        logits = x @ tensors[f"{head}.{BLOCKS}.weight"].T
        torch.testing.assert_close(heads(states)[:, head], logits, rtol=0, atol=1e-5)
        best = logits[:, :100].argsort(dim=1, descending=True)[:, :4]
        assert torch.equal(heads.tops(states, 4, 100)[:, head], best)
    assert draft_kind(folder) is DraftKind.MEDUSA


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ({"medusa_num_heads": None}, {}, "medusa_num_heads None"),
        ({"medusa_num_layers": -1}, {}, "medusa_num_layers -1"),
        (
            {"medusa_num_heads": 4},
            {},
            r"4 heads of 2 blocks are announced, and 3\.0\.linear\.bias is missing",
        ),
        ({}, {"0.linear.weight": [HIDDEN, HIDDEN]}, r"0\.linear\.weight is not known here"),
        (
            {},
            {"1.2.weight": [64, HIDDEN]},
            r"1\.2\.weight is \[64, 32\]; for this target it would be \[128, 32\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tiny: Any, config: dict[str, Any], changes: dict[str, list[int]], message: str, tmp_path: Path
) -> None:
    tensors = checkpoint(tiny.vocabulary) | {name: torch.zeros(sizes) for name, sizes in changes.items()}
    folder = write(tmp_path / "heads", CONFIG | config, tensors)
    with pytest.raises(ModelError, match=message):
        load_medusa(folder, tiny.model(0), torch.float32)


@pytest.mark.parametrize("name", ["medusa_lm_head.safetensors", "medusa_lm_head.pt", "other.safetensors"])
def test_weights_that_cannot_be_read(tiny: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(b"neither of both")
    with pytest.raises(ModelError, match="cannot be read|holds no tensors|there is neither"):
        load_medusa(tmp_path, tiny.model(0), torch.float32)


class Oracle(MedusaHeads):
    """Heads that are right: they know what a greedy text goes on with, by the state it goes on from."""

    def __init__(self, states: Tensor, tokens: list[int], vocabulary: int) -> None:
        super().__init__(HEADS, 0, states.shape[1], vocabulary)
        self.states, self.followers, self.vocabulary = states, tokens, vocabulary

    def forward(self, states: Tensor) -> Tensor:
        logits = torch.zeros(len(states), HEADS, self.vocabulary)
        for row, place in enumerate(torch.cdist(states, self.states).argmin(dim=1).tolist()):
            for head in range(HEADS):
                if place + 2 + head < len(self.followers):
                    logits[row, head, self.followers[place + 2 + head]] = 9.0
        return logits


def oracle(tiny: Any, target: Any, prompt: tuple[int, ...], count: int) -> tuple[LoadedDraft, list[int]]:
    """Heads for ``target``, and the greedy text they know."""
    with torch.no_grad():
        ids = target.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None
        )
        states = target(ids, output_hidden_states=True).hidden_states[-1][0]
    tokens = ids[0].tolist()
    return LoadedDraft(256, medusa=Oracle(states, tokens, tiny.vocabulary)), tokens[len(prompt) :]


def test_right_heads_keep_as_many_tokens_as_there_are_heads(tiny: Any) -> None:
    """Each head is told the right state: the first one speaks of the place behind the last token."""
    prompt = (5, 6, 7)
    draft, text = oracle(tiny, tiny.model(0), prompt, 40)
    engine = tiny.engine(tiny.model(0), draft, proposers=("medusa",), max_tree_nodes=8)
    assert engine.info.proposers == ("medusa",)
    request = Request("a", prompt, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    ran = tiny.run(engine, [request])
    assert ran.tokens["a"] == text
    metrics = ran.last["a"].metrics.speculation
    assert [(counts.source, counts.num_accepted > 0) for counts in metrics.by_source] == [("medusa", True)]
    assert metrics.mean_acceptance_length > 3.0  # of 4: the last steps have fewer places left


def random_heads(tiny: Any) -> LoadedDraft:
    heads = MedusaHeads(HEADS, BLOCKS, HIDDEN, tiny.vocabulary)
    heads.load_state_dict(checkpoint(tiny.vocabulary))
    return LoadedDraft(256, medusa=heads.requires_grad_(False).eval())


@pytest.mark.parametrize("proposers", [("medusa",), ("ngram", "medusa", "recycle"), ("draft", "ngram")])
def test_greedy_text_stays_the_same(tiny: Any, proposers: tuple[str, ...]) -> None:
    """``draft`` means the heads where the draft is heads."""
    requests = [
        Request(str(i), (5, 6, 7 + i), SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
        for i in range(3)
    ]
    plain = tiny.run(tiny.engine(tiny.model(0)), requests).tokens
    engine = tiny.engine(tiny.model(0), random_heads(tiny), proposers=proposers)
    assert "medusa" in engine.info.proposers
    assert "draft" not in engine.info.proposers
    assert tiny.run(engine, requests).tokens == plain


def test_a_seed_gives_one_text_in_any_company(tiny: Any) -> None:
    def request(name: str, seed: int) -> Request:
        params = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True, seed=seed)
        return Request(name, (5, 6, 7), params, SpeculationParams(proposers=("medusa",)))

    draft = random_heads(tiny)
    engine = tiny.engine(tiny.model(0), draft, proposers=("medusa",))
    alone = tiny.run(engine, [request("a", 3)]).tokens["a"]
    together = tiny.run(engine, [request("b", 1), request("a", 3), request("c", 2)]).tokens["a"]
    assert together == alone
    # Few rows, so that some are preempted and prefilled again.
    rows = engine.info.kv_bytes_per_row * 112
    tight = tiny.engine(
        tiny.model(0), random_heads(tiny), proposers=("medusa",), max_model_len=70, kv_memory=rows
    )
    ran = tiny.run(tight, [request(str(n), n) for n in range(6)])
    assert sum(output.metrics.num_preemptions for output in ran.last.values()) > 0
    assert ran.tokens["3"] == alone


def test_heads_are_needed_for_their_proposer(tiny: Any) -> None:
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="'medusa' needs Medusa heads"):
        tiny.engine(tiny.model(0), draft, proposers=("draft", "medusa"))


def test_an_audit_of_laws_refuses_them(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "load_pair", lambda _: (None, random_heads(tiny)))
    with pytest.raises(ConfigError, match="Medusa heads only name tokens"):
        pair.audit_pair(PairSettings(), Console(quiet=True))
