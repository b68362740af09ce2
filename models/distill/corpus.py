"""The text a draft learns from: token ids, from files that the target or the user wrote."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..base import ModelError

_HELD_OUT_SHARE = 32  # one prompt in so many is kept out of training
_MIN_TOKENS = 8  # shorter pieces teach nothing


@dataclass(frozen=True, slots=True)
class Document:
    """A text; the draft learns to write its tokens from ``output_start`` on, the rest is context."""

    token_ids: tuple[int, ...]
    output_start: int


def read_corpus(paths: Sequence[Path], tokenizer: Any, vocab_size: int, max_tokens: int) -> list[Document]:
    """Documents of at most ``max_tokens`` from JSONL files (``.jsonl``, ``.jsonl.gz``) and from plain text.

    A JSONL line is an object with ``prompt`` and ``output``, lists of token ids. Plain text (UTF-8) is cut
    into documents of ``max_tokens`` each, all of it output. Raises ModelError that names the file and
    the line.
    """
    documents: list[Document] = []
    for path in paths:
        try:
            if path.name.endswith((".jsonl", ".jsonl.gz")):
                documents.extend(_read_jsonl(path, vocab_size))
            else:
                documents.extend(_read_text(path, tokenizer, max_tokens))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
    cut = (Document(document.token_ids[:max_tokens], document.output_start) for document in documents)
    return [document for document in cut if _is_usable(document)]


def split_held_out(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held out), by a hash of the prompt: the same prompt never stands on both sides.

    A document without a prompt goes by all of its tokens. Where the hash would leave a side empty, one
    prompt is moved there; ModelError when there is only one.
    """
    groups: dict[int, list[Document]] = {}
    for document in documents:
        key = document.token_ids[: document.output_start] or document.token_ids
        digest = hashlib.sha256(json.dumps(key).encode()).digest()
        groups.setdefault(int.from_bytes(digest[:8], "big"), []).append(document)
    if len(groups) < 2:
        raise ModelError("the corpus needs at least two different prompts: one to train on, one to hold out")
    held_out = {number for number in groups if number % _HELD_OUT_SHARE == 0} or {min(groups)}
    if len(held_out) == len(groups):
        held_out.remove(max(groups))
    parts: tuple[list[Document], list[Document]] = ([], [])
    for number, members in groups.items():
        parts[number in held_out].extend(members)
    return parts


def frequent_ids(documents: Iterable[Document], count: int) -> Tensor:
    """The ``count`` most frequent output ids, or all when they are fewer: ``[V]`` int64, ascending."""
    counts: Counter[int] = Counter()
    for document in documents:
        counts.update(document.token_ids[document.output_start :])
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:count]
    return torch.tensor(sorted(token_id for token_id, _ in ranked), dtype=torch.int64)


def _is_usable(document: Document) -> bool:
    return len(document.token_ids) >= max(_MIN_TOKENS, document.output_start + 2)


def _read_jsonl(path: Path, vocab_size: int) -> Iterator[Document]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                prompt, output = entry["prompt"], entry["output"]
                ids = tuple(int(token_id) for token_id in (*prompt, *output))
            except (ValueError, KeyError, TypeError) as error:
                problem = f"{path}, line {number}: no object with prompt and output token ids"
                raise ModelError(f"{problem}: {error!r}") from error
            if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
                raise ModelError(f"{path}, line {number}: a token id lies outside the target's {vocab_size}")
            yield Document(ids, len(prompt))


def _read_text(path: Path, tokenizer: Any, max_tokens: int) -> Iterator[Document]:
    ids = tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False, verbose=False)["input_ids"]
    for start in range(0, len(ids), max_tokens):
        yield Document(tuple(ids[start : start + max_tokens]), 0)
