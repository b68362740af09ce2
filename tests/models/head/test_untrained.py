"""A draft that knows nothing: the same sizes and ids, weights of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import resispec.models
from resispec.models.base import ModelError
from resispec.models.head.checkpoint import load_head
from resispec.models.head.untrained import write_untrained

TRAINED = Path(resispec.models.__path__[0]) / "assets" / "smollm2-135m-instruct-head"


def test_it_has_the_sizes_of_the_trained_one_and_other_weights(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    write_untrained(TRAINED, tmp_path / "one")
    write_untrained(TRAINED, tmp_path / "other", seed=1)
    module, vocab_ids = load_head(TRAINED)
    assert torch.equal(torch.get_rng_state(), state)
    one, ids = load_head(tmp_path / "one")
    other, _ = load_head(tmp_path / "other")
    assert one.config == module.config
    assert torch.equal(ids, vocab_ids)
    assert not torch.equal(one.fuse.weight, module.fuse.weight)
    assert not torch.equal(one.fuse.weight, other.fuse.weight)


def test_only_a_head_has_an_untrained_like(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        write_untrained(tmp_path, tmp_path / "out")
