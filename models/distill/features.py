"""The target's hidden states over a corpus, computed once and kept on disk.

A store is a folder of flat files; document ``d`` owns the ``length`` tokens from ``offset`` on::

    documents.npy   [D, 3] int64      offset, length, output_start of every document
    tokens.npy      [T]    int32      the documents' tokens, one after the other
    hidden.bin      [T, H] bfloat16   the last hidden state of every token, as the output matrix reads it
    layers.bin      [T, K * H] bf16   what went into K layers, side by side, for a draft that reads them
    progress.json                     batches already written, and what the store was computed from
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..base import ModelError
from ..files import allocate, write_whole
from ..head.tap import LayerInputs
from .corpus import Document

_BATCH_TOKENS = 1024  # padded tokens of one forward: what one core computes fastest, and small in memory


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """Documents with the target's last hidden state of every token."""

    documents: Tensor  # [D, 3] int64: offset, length, output_start
    tokens: Tensor  # [T] int64
    hidden: Tensor  # [T, H] bfloat16, mapped from disk
    layers: Tensor | None = None  # [T, K * H] bfloat16, likewise: the inputs of K layers

    def __len__(self) -> int:
        return self.documents.shape[0]

    @classmethod
    def open(cls, folder: Path, hidden_size: int, num_layers: int = 0) -> FeatureStore:
        """Map a finished store with the inputs of ``num_layers`` layers.

        Raises ModelError when it is missing or its size is not what it should be.
        """
        try:
            documents = torch.from_numpy(np.load(folder / "documents.npy"))
            tokens = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int64))
        except (OSError, ValueError) as error:
            raise ModelError(f"no feature store in {folder}: {error}; run the distillation again") from error
        hidden = _map_states(folder / "hidden.bin", len(tokens), hidden_size)
        layers = None
        if num_layers:
            layers = _map_states(folder / "layers.bin", len(tokens), num_layers * hidden_size)
        return cls(documents, tokens, hidden, layers)


def extract_features(
    target: Any,
    documents: Sequence[Document],
    folder: Path,
    console: Console,
    source: str = "",
    layers: Sequence[int] = (),
) -> FeatureStore:
    """Run ``target`` (a transformers causal model) over ``documents`` and keep its last hidden states, and
    what goes into ``layers``, counted from 0.

    An interrupted run goes on at the first batch that is not on disk. ``source`` names the target; a
    store of other documents, of other layers or of another target is started afresh. Raises ModelError for a
    layer that is not there.
    """
    if not documents:
        raise ModelError("the corpus holds no document: give text the target wrote, or let it write some")
    folder.mkdir(parents=True, exist_ok=True)
    hidden_size = int(target.config.hidden_size)
    table, tokens = _layout(documents)
    read = ",".join(map(str, layers))
    digest = hashlib.sha256(tokens.tobytes() + table.tobytes() + source.encode() + read.encode()).hexdigest()
    done = _resume_point(folder / "progress.json", digest)
    if done == 0:
        for name, array in (("documents.npy", table), ("tokens.npy", tokens)):
            buffer = io.BytesIO()
            np.save(buffer, array)
            write_whole(folder / name, buffer.getvalue())
        allocate(folder / "hidden.bin", len(tokens) * hidden_size * 2)
        if layers:
            allocate(folder / "layers.bin", len(tokens) * len(layers) * hidden_size * 2)
    store = FeatureStore.open(folder, hidden_size, len(layers))
    tap = LayerInputs(target, layers) if layers else None
    batches = list(_batches(store.documents, _BATCH_TOKENS))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, tap or nullcontext():
        task = progress.add_task("hidden states", total=len(batches), completed=done)
        for number in range(done, len(batches)):
            _write_batch(target, store, batches[number], tap)
            write_whole(folder / "progress.json", json.dumps({"digest": digest, "batches": number + 1}))
            progress.advance(task)
    return store


@torch.inference_mode()
def _write_batch(target: Any, store: FeatureStore, batch: list[int], tap: LayerInputs | None) -> None:
    rows = [store.documents[d].tolist() for d in batch]
    longest = max(length for _, length, _ in rows)
    padded = torch.zeros(len(rows), longest, dtype=torch.int64)
    for row, (offset, length, _) in enumerate(rows):
        padded[row, :length] = store.tokens[offset : offset + length]
    # Padding stands at the right, so under a causal mask no real token sees it and no mask is needed.
    out = target.get_decoder()(input_ids=padded.to(target.device), use_cache=False).last_hidden_state
    kept = [(store.hidden, out)]
    if tap is not None and store.layers is not None:
        kept.append((store.layers, torch.cat(tap.take(), dim=-1)))
    for states, given in kept:
        given = given.to(device="cpu", dtype=torch.bfloat16)
        for row, (offset, length, _) in enumerate(rows):
            states[offset : offset + length] = given[row, :length]


def _layout(documents: Sequence[Document]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    lengths = np.array([len(d.token_ids) for d in documents], dtype=np.int64)
    offsets = np.cumsum(lengths) - lengths
    starts = np.array([d.output_start for d in documents], dtype=np.int64)
    tokens = np.concatenate([np.array(d.token_ids, dtype=np.int32) for d in documents])
    return np.stack([offsets, lengths, starts], axis=1), tokens


def _batches(documents: Tensor, budget: int) -> Iterator[list[int]]:
    """Documents of like length together, at most ``budget`` padded tokens a batch (one document at least)."""
    batch: list[int] = []
    longest = 0
    for document in torch.argsort(documents[:, 1], stable=True).tolist():
        length = int(documents[document, 1])
        if batch and max(longest, length) * (len(batch) + 1) > budget:
            yield batch
            batch, longest = [], 0
        batch.append(document)
        longest = max(longest, length)
    yield batch


def _map_states(path: Path, tokens: int, width: int) -> Tensor:
    count = tokens * width
    if not path.is_file() or path.stat().st_size != 2 * count:
        raise ModelError(f"{path} is missing or cut off; remove its folder and run the distillation again")
    flat = torch.from_file(str(path), shared=True, size=count, dtype=torch.bfloat16)
    return flat.view(tokens, width)


def _resume_point(path: Path, digest: str) -> int:
    try:
        state = json.loads(path.read_text())
        return int(state["batches"]) if state["digest"] == digest else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0
