"""Check that a draft model can propose tokens for a target: the same ids must mean the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import ModelError

SHOWN = 3  # differing tokens in an error message


@dataclass(frozen=True, slots=True)
class PairReport:
    """``usable_ids``: ids below it exist in the tokenizer and in both models; others are never proposed."""

    usable_ids: int
    notes: tuple[str, ...]  # handled oddities, one sentence each


def check_pair(
    target_tokenizer: Any,
    draft_tokenizer: Any,
    *,
    target_rows: int,
    draft_rows: int,
    target_positions: int,
    draft_positions: int,
) -> PairReport:
    """Compare two vocabularies token for token, added tokens included.

    rows: rows of a model's output matrix, which may be padded beyond the tokenizer. positions: a
    model's context, in tokens. How text is split does not matter, for a draft only ever sees ids.
    Raises ModelError showing the first differing tokens and what would work.
    """
    target, draft = _tokens_by_id(target_tokenizer), _tokens_by_id(draft_tokenizer)
    differing = [
        token for token in sorted(target.keys() | draft.keys()) if target.get(token) != draft.get(token)
    ]
    if differing:
        shown = "; ".join(
            f"id {token} is {_shown(target, token)} in the target and {_shown(draft, token)} in the draft"
            for token in differing[:SHOWN]
        )
        raise ModelError(
            f"the draft's vocabulary is not the target's ({len(differing)} ids differ: {shown}); use a draft "
            "of the target's own family, make one with 'resispec distill', or serve with "
            "--draft none, with which --proposer ngram,recycle needs no draft"
        )
    num_ids = usable_ids(target_tokenizer, target_rows)
    if draft_rows < num_ids:
        raise ModelError(
            f"the draft scores {draft_rows} token ids, the target's tokenizer has {num_ids}: the last ones "
            "could never be drafted; use a draft whose output matrix covers the whole vocabulary"
        )
    notes = []
    padded = max(target_rows, draft_rows) - num_ids
    if padded:
        notes.append(f"{padded} rows beyond the tokenizer's {num_ids} ids are padding, never proposed.")
    if draft_positions < target_positions:
        notes.append(
            f"The draft's context ends at {draft_positions} tokens, the target's at {target_positions}: "
            "longer sequences go on without speculation."
        )
    return PairReport(num_ids, tuple(notes))


def usable_ids(tokenizer: Any, rows: int) -> int:
    """One more than the largest token id that is in the tokenizer and in a model of ``rows`` rows."""
    return min(max(_tokens_by_id(tokenizer)) + 1, rows)


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {int(token): text for text, token in tokenizer.get_vocab().items()}


def _shown(tokens: dict[int, str], token: int) -> str:
    return repr(tokens[token]) if token in tokens else "missing"
