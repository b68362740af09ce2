"""The audit of a pair: logits at the right positions, acceptance against enumeration, tables and plots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from resispec.engine.audit.ceiling import ceiling
from resispec.engine.audit.laws import LawSource, Positions
from resispec.engine.audit.node import node_law
from resispec.engine.audit.pair_report import by_verifier, pair_json, print_pair, write_pair
from resispec.engine.audit.proposals import source
from resispec.engine.audit.read import Case
from resispec.engine.audit.settings import PairSettings, parse_children
from resispec.engine.audit.tally import Row, Tally
from resispec.engine.build import LoadedDraft, LoadedTarget
from resispec.engine.config import ConfigError, EngineConfig
from resispec.engine.verifiers.table import VERIFIERS
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

V = 32


def draft_of(tiny: Any, kind: str) -> LoadedDraft:
    if kind == "model":
        return LoadedDraft(256, model=tiny.model(7, vocab_size=V, num_hidden_layers=1))
    torch.manual_seed(3)
    config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 20, TargetFingerprint("tiny", V, 32, "0", (0.0,)))
    head = HeadModule(config).requires_grad_(False).eval()
    return LoadedDraft(256, head=head, vocab_ids=torch.arange(20) + 5)


@pytest.mark.parametrize("kind", ["model", "head"])
def test_logits_are_those_of_the_positions(tiny: Any, kind: str) -> None:
    target = tiny.model(0, vocab_size=V)
    loaded = LoadedTarget(target, tiny.tokenizer(), "tiny", 256, V, (1,), {})
    config = EngineConfig("tiny", draft="tiny", dtype="float32", num_threads=1)
    laws = LawSource(config, loaded, draft_of(tiny, kind), 40)
    [text, other] = laws.sample([[3, 4, 5], [6, 7]], 9, temperature=1.0, seed=1)
    assert (len(text), len(other)) == (12, 11)
    assert text[:3] == [3, 4, 5]
    found = laws.positions(text, 3)
    # The answer's first token comes with the prompt; the laws are those of the eight after it.
    plain = tiny.model(0, vocab_size=V)
    expected = plain(input_ids=torch.tensor([text]), use_cache=False).logits[0, 3:11]
    torch.testing.assert_close(found.target, expected, rtol=1e-4, atol=1e-4)
    if kind == "model":
        drafted = tiny.model(7, vocab_size=V, num_hidden_layers=1)
        expected = drafted(input_ids=torch.tensor([text]), use_cache=False).logits[0, 3:11]
        torch.testing.assert_close(found.draft, expected, rtol=1e-4, atol=1e-4)
    else:
        assert found.draft.shape == (8, 20)
        assert found.vocab_ids is not None
        # Causal: a longer text changes nothing before it, and the last position sees all.
        shorter = laws.positions(text[:-1], 3)
        torch.testing.assert_close(found.draft[:7], shorter.draft, rtol=1e-4, atol=1e-4)
        changed = laws.positions([*text[:6], (text[6] + 1) % V, *text[7:]], 3)
        assert torch.equal((changed.draft - found.draft).abs().amax(dim=1) > 1e-3, torch.arange(8) >= 3)


def test_acceptance_against_enumeration() -> None:
    """Many positions of one law: the mean is within 6 standard errors (2e-9 a false alarm each)."""
    torch.manual_seed(5)
    target, draft = torch.randn(6), torch.randn(6)
    tally = Tally((1, 2, 3), 0.8, seed=2)
    tally.add(Positions(target.expand(40, -1), draft.expand(40, -1), None))
    p, q = ((x.double() / 0.8).softmax(0).tolist() for x in (target, draft))
    best = draft.argsort(descending=True).tolist()
    rows = tally.rows()
    assert {(row.verifier, row.children) for row in rows} == {
        (name, children) for name in VERIFIERS for children in (1, 2, 3) if name != "block" or children == 1
    }
    for row in rows:
        assert row.head + row.tail == row.children
        verifier = VERIFIERS[row.verifier]
        node = source(Case(tuple(p), tuple(q), tuple(best[: int(row.head)]), int(row.tail)), verifier.drawing)
        expected = node_law(verifier, node).acceptance
        assert abs(row.acceptance - expected) < 6 * row.standard_error + 1e-6
        assert row.standard_error < 0.02
        assert row.ceiling == pytest.approx(ceiling(node), abs=1e-6)


def test_other_vocabularies_of_drafts() -> None:
    """A draft that knows but some ids: the same acceptance as one that knows all and excludes the rest."""
    torch.manual_seed(6)
    target, draft, ids = torch.randn(4, 9), torch.randn(4, 5), torch.tensor([8, 1, 3, 0, 6])
    whole = torch.full((4, 9), -torch.inf)
    whole[:, ids] = draft
    results = []
    for positions in (Positions(target, draft, ids), Positions(target, whole, None)):
        tally = Tally((2,), 1.0, seed=3)
        tally.add(positions)
        results.append([row.acceptance for row in tally.rows()])
    assert results[0] == pytest.approx(results[1], abs=1e-6)


ROWS = [
    Row("resispec", True, 1, 0, 1, 0.5, 0.01, 0.5, 1.0),
    Row("resispec", True, 2, 1, 1, 0.6, 0.01, 0.61, 0.98),
    Row("resispec-paper", False, 2, 0, 2, 0.9, 0.01, None, None),
]


def test_table_json_and_plot(tmp_path: Path) -> None:
    settings = PairSettings()
    console = Console(record=True, width=120)
    print_pair(settings, ROWS, console)
    shown = console.export_text()
    assert "0.6000 ± 0.0100" in shown
    assert "resispec-paper (not exact)" in shown
    write_pair(settings, ROWS, tmp_path / "new" / "folder")
    written = json.loads((tmp_path / "new" / "folder" / "pair.json").read_text())
    assert written == json.loads(json.dumps(pair_json(settings, ROWS)))
    assert written["pair"]["rows"][1]["children"] == 2
    assert (tmp_path / "new" / "folder" / "pair.png").read_bytes().startswith(b"\x89PNG")
    assert list(by_verifier(ROWS)) == ["resispec", "resispec-paper"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--output"):
        write_pair(settings, ROWS, tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--temperature", "0.5"], "--temperature goes with --pair or --live"),
        (["--output", "x"], "--output goes with --pair"),
        (["--answers", "200"], "--answers goes with --live"),
        (["--pair", "--api-key", "x"], "--api-key goes with --live"),
        (["--live", "http://localhost:1", "--pair"], "--live goes alone"),
        (["--live", "http://localhost:1", "--children", "2"], "--children goes with --pair"),
        (["--live", "http://localhost:1"], "--live: no answer from http://localhost:1"),
        (["--live", "localhost"], "--live is 'localhost'"),
        (["--pair", "--temperature", "0"], "--temperature is 0"),
        (["--pair", "--children", "1,x"], "--children is '1,x'"),
        (["--pair", "--children", "0"], "--children takes numbers from 1"),
        (["--pair", "--positions", "1"], "--positions is 1"),
        (["--splits"], "--splits goes with --pair"),
        (["--pair", "--splits", "--output", "x"], "leave out --splits"),
    ],
)
def test_refused(arguments: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "resispec.server.cli", "audit", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert reason in result.stderr


def test_children_are_numbers() -> None:
    assert parse_children("1, 2,4,2") == (1, 2, 4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_pair(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "resispec.server.cli", "audit", "--pair", "--json"]
    options = ["--positions", "16", "--children", "1,3", "--output", str(tmp_path)]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    rows = {(row["verifier"], row["children"]): row for row in json.loads(result.stdout)["pair"]["rows"]}
    assert rows["resispec", 3]["acceptance"] > rows["resispec", 1]["acceptance"] > 0.1
    for (name, _), row in rows.items():
        if row["ceiling"] is not None and name != "resispec-paper":
            assert row["acceptance"] < row["ceiling"] + 0.1  # draws vary, bounds do not
    assert (tmp_path / "pair.png").exists()
