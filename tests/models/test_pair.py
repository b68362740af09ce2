"""A pair must read the same ids as the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from resispec.models.base import ModelError
from resispec.models.pair import check_pair, usable_ids

WORDS = {word: index for index, word in enumerate(("<unk>", "a", "b", "c"))}


def tokenizer(words: dict[str, int], added: tuple[str, ...] = ()) -> Any:
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")))
    made.add_tokens(list(added))
    return made


def check(draft: Any, target: Any = None, **sizes: int) -> Any:
    defaults = {"target_rows": 5, "draft_rows": 5, "target_positions": 100, "draft_positions": 100}
    return check_pair(target or tokenizer(WORDS, ("<end>",)), draft, **(defaults | sizes))


def test_the_same() -> None:
    report = check(tokenizer(WORDS, ("<end>",)))
    assert (report.usable_ids, report.notes) == (5, ())


def test_two_tokens_swapped() -> None:
    swapped = {"<unk>": 0, "b": 1, "a": 2, "c": 3}
    with pytest.raises(
        ModelError, match=r"2 ids differ: id 1 is 'a' in the target and 'b' in the draft"
    ) as raised:
        check(tokenizer(swapped, ("<end>",)))
    assert "resispec distill" in str(raised.value)


def test_another_added_token() -> None:
    with pytest.raises(
        ModelError, match=r"1 ids differ: id 4 is '<end>' in the target and '<stop>' in the draft"
    ):
        check(tokenizer(WORDS, ("<stop>",)))


def test_a_token_too_few() -> None:
    with pytest.raises(ModelError, match=r"id 4 is '<end>' in the target and missing in the draft"):
        check(tokenizer(WORDS))


def test_a_token_too_many() -> None:
    with pytest.raises(ModelError, match=r"id 5 is missing in the target and '<more>' in the draft"):
        check(tokenizer(WORDS, ("<end>", "<more>")))


@pytest.mark.parametrize(
    "sizes", [{"target_rows": 8}, {"draft_rows": 8}, {"target_rows": 8, "draft_rows": 6}]
)
def test_padded_rows_are_not_usable(sizes: dict[str, int]) -> None:
    report = check(tokenizer(WORDS, ("<end>",)), **sizes)
    assert report.usable_ids == 5
    assert "3 rows beyond the tokenizer's 5 ids" in report.notes[0]


def test_a_draft_without_rows_for_all_tokens() -> None:
    with pytest.raises(ModelError, match="the draft scores 4 token ids"):
        check(tokenizer(WORDS, ("<end>",)), draft_rows=4)


def test_a_draft_with_a_shorter_context() -> None:
    [note] = check(tokenizer(WORDS, ("<end>",)), draft_positions=50).notes
    assert "ends at 50 tokens" in note


def test_tokens_without_rows_are_not_usable() -> None:
    assert usable_ids(tokenizer(WORDS, ("<end>",)), rows=4) == 4
