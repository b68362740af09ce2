"""What the contenders are loaded from."""

from __future__ import annotations

from pathlib import Path

from resispec.engine.bench.load import draft_source, speculations
from resispec.engine.bench.settings import BenchSettings
from resispec.engine.request import FormHelp
from resispec.models.head.checkpoint import load_head


def test_an_untrained_draft_exists_for_as_long_as_it_is_loaded() -> None:
    with draft_source(BenchSettings(untrained=True)) as draft:
        assert draft is not None
        assert load_head(Path(draft))[0].config.hidden_size > 0
    assert not Path(draft).exists()
    with draft_source(BenchSettings()) as draft:
        assert draft == "default"
    with draft_source(BenchSettings(draft=None)) as draft:
        assert draft is None


def test_modes_are_compared_with_the_proposers_named() -> None:
    both = BenchSettings(modes=("auto", "fixed"), proposers=("draft+ngram",))
    assert [name for name, _ in speculations(both)] == ["speculative auto", "speculative fixed"]
    several = BenchSettings(modes=("auto",), proposers=("draft", "draft+ngram"))
    names = [name for name, _ in speculations(several)]
    assert names == ["speculative draft", "speculative draft+ngram", "speculative auto"]
    assert both.engine_config(64, speculates=True).proposers == ("draft", "ngram")


def test_what_forms_are_used_for_is_compared() -> None:
    settings = BenchSettings(forms=("forced+prompt", "none"), prompts=("schema",))
    found = {name: wanted.form for name, wanted in speculations(settings)}
    assert found == {
        "speculative forced+prompt": {FormHelp.FORCED, FormHelp.PROMPT},
        "speculative none": frozenset(),
    }
