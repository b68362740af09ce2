"""Tokens in print, for every way in which tokenizers spell bytes and spaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from resispec.server.token_strings import TokenStrings


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: place for place, char in enumerate(alphabet)}
    merged = {"Ġa": 256, "Ã©": 257}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, **merged}, merges=[("Ġ", "a"), ("Ã", "©")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end é>", special=True)])
    return tokenizer


def sentence_piece() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁hello", "é", "▁"]
    tokenizer = Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def words() -> Tokenizer:
    return Tokenizer(models.WordLevel({"one": 0, "▁two": 1}, unk_token="one"))


def test_byte_level_tokens() -> None:
    tokenizer = byte_level()
    strings = TokenStrings(tokenizer)
    assert sorted(strings.data(token) for token in range(256)) == [bytes([byte]) for byte in range(256)]
    assert (strings.text(256), strings.data(256)) == (" a", b" a")
    assert strings.text(257) == "é"
    half = tokenizer.encode("à").ids[0]
    assert (strings.text(half), strings.data(half)) == ("bytes:\\xc3", b"\xc3")
    assert [strings.text(token) for token in tokenizer.encode("<end é>").ids] == ["<end é>"]


def test_byte_tokens_and_leading_spaces() -> None:
    strings = TokenStrings(sentence_piece())
    assert [strings.text(token) for token in (1 + 0x41, 1 + 0xE2, 257, 258, 259)] == [
        "A",
        "bytes:\\xe2",
        " hello",
        "é",
        " ",
    ]


def test_other_tokenizers_decode() -> None:
    strings = TokenStrings(words())
    assert [strings.text(token) for token in (0, 1)] == ["one", "▁two"]


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_bytes_in_a_row_are_the_text(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    text = "hello é 😀 a"
    strings = TokenStrings(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert any(strings.text(token).startswith("bytes:") for token in ids)
    assert b"".join(strings.data(token) for token in ids).decode() == tokenizer.decode(ids) == text


def test_an_id_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="9999"):
        TokenStrings(byte_level()).data(9999)
