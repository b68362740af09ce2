"""Reading text, keeping prompts apart, choosing the draft vocabulary."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from resispec.models.base import ModelError
from resispec.models.distill.corpus import Document, frequent_ids, read_corpus, split_held_out


class Letters:
    """A tokenizer: one token a letter."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}


def read(*paths: Path) -> list[Document]:
    return read_corpus(paths, Letters(), 30, 20)


def line(prompt: list[int], output: list[int]) -> str:
    return json.dumps({"prompt": prompt, "output": output, "temperature": 1.0}) + "\n"


def test_jsonl_plain_and_packed(tmp_path: Path) -> None:
    first, second = line([1, 2, 3], list(range(10))), line([], list(range(29, 9, -1)))
    (tmp_path / "a.jsonl").write_text(first)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(second)
    assert read(tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz") == [
        Document((1, 2, 3, *range(10)), 3),
        Document(tuple(range(29, 9, -1)), 0),
    ]


def test_long_and_short_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        line([1] * 4, [2] * 30),
        line([1] * 2, [2] * 3),
        line([1] * 19, [2] * 5),
        line([1] * 30, [2] * 5),
    ]
    path.write_text("".join(lines))
    # Cut at 20; too short; one output token left, which leaves nothing to draft; no output left.
    assert read(path) == [Document((1,) * 4 + (2,) * 16, 4)]


def test_text_is_cut_into_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij" * 5)
    pieces = read(tmp_path / "a.txt")
    assert [len(piece.token_ids) for piece in pieces] == [20, 20, 10]
    assert [token_id for piece in pieces for token_id in piece.token_ids] == list(range(10)) * 5
    assert {piece.output_start for piece in pieces} == {0}


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[]",
        "{}",
        '{"prompt": [1], "output": ["x"]}',
        '{"prompt": [1], "output": 5}',
        line([1], [30]),
        line([-1], [3]),
    ],
)
def test_a_bad_line_is_named(bad: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line([1], [2] * 9) + bad)
    with pytest.raises(ModelError, match=r"a\.jsonl, line 2"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
def test_an_unreadable_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot read .*a\.txt"):
        read(path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ModelError, match=r"cannot read .*a\.jsonl\.gz"):
        read(tmp_path / "a.jsonl.gz")


def test_a_prompt_never_stands_on_both_sides() -> None:
    documents = [Document((prompt, 7, output), 2) for prompt in range(400) for output in range(3)]
    training, held_out = split_held_out(documents)
    assert sorted([*training, *held_out], key=lambda d: d.token_ids) == documents
    assert not {d.token_ids[:2] for d in training} & {d.token_ids[:2] for d in held_out}
    assert 3 <= len(held_out) / 3 <= 30  # 400 / 32 = 12.5 expected
    assert split_held_out(documents) == (training, held_out)


@pytest.mark.parametrize("count", [2, 3, 40])
def test_both_sides_of_a_small_corpus_hold_something(count: int) -> None:
    training, held_out = split_held_out([Document((number, 1, 2), 0) for number in range(count)])
    assert training
    assert held_out


def test_one_prompt_cannot_be_split() -> None:
    with pytest.raises(ModelError, match="two different prompts"):
        split_held_out([Document((1, 2, 3, output), 3) for output in range(9)])


def test_frequent_ids_count_outputs_only() -> None:
    documents = [Document((9, 9, 9, 4, 4, 4, 2, 2, 7), 3), Document((5, 2, 8), 1)]
    assert frequent_ids(documents, 2).tolist() == [2, 4]
    assert frequent_ids(documents, 3).tolist() == [2, 4, 7]  # 7 and 8 occur once: the lower id
    assert frequent_ids(documents, 99).tolist() == [2, 4, 7, 8]
