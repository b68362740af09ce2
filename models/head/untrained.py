"""A head that has learned nothing: what a draft that is plain bad does to a server."""

from __future__ import annotations

from pathlib import Path

import torch

from .checkpoint import load_head, save_head
from .module import HeadModule


def write_untrained(trained: Path, out: Path, *, seed: int = 0) -> None:
    """A head like that in ``trained``, for the same target and as quick, with random weights, into ``out``.

    Raises ModelError where ``trained`` holds no head.
    """
    module, vocab_ids = load_head(trained)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        save_head(out, HeadModule(module.config), vocab_ids)
