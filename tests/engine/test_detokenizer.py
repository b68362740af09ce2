"""Text comes out whole: no half characters, no half stop strings, spaces where they belong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from resispec.engine.detokenizer import IncrementalDetokenizer, Piece
from resispec.engine.request import SamplingParams
from resispec.engine.text_decoder import MAX_PENDING, PROMPT_TAIL, TextDecoder
from resispec.models.prepare.default import prepare_default

CORPUS = ["hello world, this is some text", "你好世界，今天天气很好", "👍🏽 👩‍👩‍👧 🇨🇭 ok", "naïve café"] * 5
TEXTS = [
    "hello world",
    "今天天气很好，世界你好",
    "family 👩‍👩‍👧‍👦, thumbs 👍🏽👍🏿, flags 🇨🇭🇯🇵",
    "a genuine \ufffd in the middle, and at the end \ufffd",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u0000 é ñ",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """The Llama kind: words with a mark for their space, bytes for what is unknown."""
    words = ["<unk>", "▁", "▁hello", "▁world", "a", "b", "lo", "▁▁"]
    vocab = {word: index for index, word in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in tokens]


def byte_ids(text: str | bytes) -> list[int]:
    data = text.encode() if isinstance(text, str) else text
    return ids_of(BYTE_FALLBACK, *(f"<0x{byte:02X}>" for byte in data))


def pieces(
    tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Sequence[int] = (), size: int = 1, **sampling
) -> list[str]:
    """What each block released, and what was left for the end."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, SamplingParams(**sampling))
    blocks = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    return [*(detokenizer.push(block).text for block in blocks), detokenizer.finish()]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_make_the_text(text, size):
    ids = BYTE_LEVEL.encode(text).ids
    assert "".join(pieces(BYTE_LEVEL, ids, size=size)) == text


@pytest.mark.parametrize("text", [text for text in TEXTS if "\ufffd" not in text])
def test_no_piece_has_half_a_character(text):
    for tokenizer, ids in ((BYTE_LEVEL, BYTE_LEVEL.encode(text).ids), (BYTE_FALLBACK, byte_ids(text))):
        made = pieces(tokenizer, ids)
        assert "".join(made) == text
        assert "\ufffd" not in "".join(made)


def test_a_character_comes_with_its_last_byte():
    assert pieces(BYTE_FALLBACK, byte_ids("你好")) == ["", "", "你", "", "", "好", ""]


@given(ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=80), size=st.integers(1, 9))
@settings(deadline=None)
def test_any_tokens_make_what_decoding_them_at_once_makes(ids, size):
    assert "".join(pieces(BYTE_LEVEL, ids, size=size)) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


@given(
    prompt=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=30), text=st.sampled_from(TEXTS)
)
@settings(deadline=None)
def test_the_prompt_adds_nothing_to_whole_characters(prompt, text):
    """Whatever the prompt was: it may end inside a character, but it is not repeated."""
    ids = BYTE_LEVEL.encode("." + text).ids
    assert "".join(pieces(BYTE_LEVEL, ids, prompt)) == "." + text


@given(ids=st.lists(st.integers(0, BYTE_FALLBACK.get_vocab_size() - 1), max_size=80))
@settings(deadline=None)
def test_byte_fallback_loses_no_text(ids):
    """Invalid bytes may differ in the number of U+FFFD, for a decoder takes valid ones before them back."""
    whole = BYTE_FALLBACK.decode(ids, skip_special_tokens=True)
    made = "".join(pieces(BYTE_FALLBACK, ids))
    if "\ufffd" not in whole:
        assert made == whole
    for word in ("hello", "world"):
        assert made.count(word) == whole.count(word)


def test_an_incomplete_character_at_the_end_is_flushed():
    ids = BYTE_LEVEL.encode("ok ☃").ids[:-1]
    assert BYTE_LEVEL.decode(ids).endswith("\ufffd")
    made = pieces(BYTE_LEVEL, ids)
    assert "".join(made[:-1]) == "ok "
    assert made[-1] == "\ufffd"


def test_a_late_invalid_byte_does_not_repeat_what_was_given_out():
    made = pieces(BYTE_FALLBACK, [*byte_ids("你好"), *byte_ids(b"\xff"), *ids_of(BYTE_FALLBACK, "a")])
    assert "".join(made) == "你好\ufffda"


def test_a_long_run_of_invalid_bytes_is_given_out_in_time():
    made = pieces(BYTE_LEVEL, ids_of(BYTE_LEVEL, "Ã") * 100)
    for count in range(1, 101):
        assert count - sum(map(len, made[:count])) <= MAX_PENDING
    assert "".join(made) == "\ufffd" * 100


@pytest.mark.parametrize("count", range(2 * MAX_PENDING + 4))
def test_a_character_right_after_invalid_bytes_survives(count):
    """Wherever in it the decoder loses its patience."""
    emoji = letters(BYTE_LEVEL.pre_tokenizer.pre_tokenize_str("👍")[0][0])
    assert len(emoji) == 4
    made = pieces(BYTE_LEVEL, ids_of(BYTE_LEVEL, "Ã") * count + emoji * 3)
    assert "".join(made) == "�" * count + "👍👍👍"


def test_characters_that_begin_and_end_inside_tokens_survive():
    """No boundary of these tokens is one of a character: e4 | bd a0 e4 | bd a0 e4 | ..."""
    head, middle, tail = (BYTE_LEVEL.pre_tokenizer.pre_tokenize_str("你")[0][0][i] for i in range(3))
    vocab = {head: 0, middle + tail + head: 1, middle + tail: 2}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    ids = [0, *[1] * 50, 2]
    made = pieces(tokenizer, ids)
    assert made == ["", *["你"] * 51, ""]


def test_the_first_word_keeps_its_space_after_a_prompt():
    hello, world = ids_of(BYTE_FALLBACK, "▁hello", "▁world")
    assert pieces(BYTE_FALLBACK, [world, hello], [hello]) == [" world", " hello", ""]
    assert pieces(BYTE_FALLBACK, [world, hello]) == ["world", " hello", ""]


def test_the_first_word_after_only_special_tokens_has_no_space():
    world, start = ids_of(BYTE_FALLBACK, "▁world", "<s>")
    assert pieces(BYTE_FALLBACK, [world], [start]) == ["world", ""]


def test_a_character_that_began_in_the_prompt_is_completed():
    ids = BYTE_LEVEL.encode("ok ☃!").ids
    assert pieces(BYTE_LEVEL, ids[-2:], ids[:-2]) == ["☃", "!", ""]


def test_a_replacement_character_of_the_prompt_is_not_repeated():
    prompt = BYTE_LEVEL.encode("cut off �").ids
    assert pieces(BYTE_LEVEL, letters("ok"), prompt) == ["o", "k", ""]


def test_many_spaces_are_all_there():
    ids = ids_of(BYTE_FALLBACK, *["▁"] * 50, "▁hello")
    assert "".join(pieces(BYTE_FALLBACK, ids)) == " " * 50 + "hello"


def test_special_tokens_are_left_out_unless_wanted():
    begin, end = ids_of(BYTE_LEVEL, "<|begin|>", "<|end|>")
    text = BYTE_LEVEL.encode("hello").ids
    assert "".join(pieces(BYTE_LEVEL, [begin, *text, end])) == "hello"
    shown = pieces(BYTE_LEVEL, [begin, *text, end], skip_special_tokens=False)
    assert "".join(shown) == "<|begin|>hello<|end|>"


def test_special_tokens_in_the_prompt_do_not_hide_its_last_word():
    hello, world, start = ids_of(BYTE_FALLBACK, "▁hello", "▁world", "<s>")
    assert pieces(BYTE_FALLBACK, [world], [hello, *[start] * 10]) == [" world", ""]


def letters(text: str) -> list[int]:
    return ids_of(BYTE_LEVEL, *text.replace(" ", "Ġ"))


def test_text_that_may_become_a_stop_string_is_held_back():
    made = pieces(BYTE_LEVEL, letters("a stork stood"), stop=("stop",))
    assert made[:8] == ["a", " ", "", "", "", "stor", "k", " "]
    assert "".join(made) == "a stork stood"


def test_what_is_held_back_comes_at_the_end():
    assert pieces(BYTE_LEVEL, letters("a sto"), stop=("stop",))[-1] == "sto"


@pytest.mark.parametrize(
    ("include", "text", "ends"), [(False, "a ", (1, 2, 2, 2, 2, 2)), (True, "a stop", (1, 2, 3, 4, 5, 6))]
)
def test_a_stop_string_inside_a_block(include, text, ends):
    sampling = SamplingParams(stop=("never", "stop"), include_stop_str_in_output=include)
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, (), sampling)
    assert detokenizer.push(letters("a stop sign")) == Piece(text, 6, ends, "stop")
    assert detokenizer.finish() == ""
    with pytest.raises(ValueError, match="ended"):
        detokenizer.push(letters("x"))


def test_a_stop_string_across_blocks_and_tokens():
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, (), SamplingParams(stop=("world, th",)))
    ids = BYTE_LEVEL.encode("hello world, this").ids
    before, after = detokenizer.push(ids[:3]), detokenizer.push(ids[3:])
    assert before.text + after.text == "hello "
    assert after.stop == "world, th"
    kept = 3 + after.num_tokens
    assert "world, th" in BYTE_LEVEL.decode(ids[:kept])
    assert "world, th" not in BYTE_LEVEL.decode(ids[: kept - 1])


def test_a_stop_string_of_several_bytes_a_character():
    detokenizer = IncrementalDetokenizer(BYTE_FALLBACK, (), SamplingParams(stop=("。",)))
    assert detokenizer.push(byte_ids("你好。世")) == Piece("你好", 9, (0, 0, 1, 1, 1, 2, 2, 2, 2), "。")


@pytest.mark.parametrize(("min_tokens", "kept"), [(0, 2), (2, 2), (3, 5), (6, 7)])
def test_a_stop_string_does_not_undercut_min_tokens(min_tokens, kept):
    """The string ends at token 2 and at token 5."""
    sampling = SamplingParams(stop=("ab",), min_tokens=min_tokens, include_stop_str_in_output=True)
    piece = IncrementalDetokenizer(BYTE_LEVEL, (), sampling).push(letters("abcabcd"))
    assert piece.num_tokens == kept
    assert piece.text == "abcabcd"[:kept]


@given(
    text=st.text("ab你", max_size=12),
    stops=st.lists(st.text("ab你", min_size=1, max_size=3), max_size=2),
    size=st.integers(1, 7),
)
@settings(deadline=None)
def test_blocks_do_not_change_the_answer(text, stops, size):
    def answer(size: int) -> tuple[str, int, str | None]:
        detokenizer = IncrementalDetokenizer(BYTE_FALLBACK, (), SamplingParams(stop=tuple(stops)))
        ids, out, kept = byte_ids(text), "", 0
        for start in range(0, len(ids), size):
            piece = detokenizer.push(ids[start : start + size])
            out, kept = out + piece.text, kept + piece.num_tokens
            if piece.stop is not None:
                return out, kept, piece.stop
        return out + detokenizer.finish(), kept, None

    one_by_one = answer(1)
    assert answer(size) == one_by_one
    assert one_by_one[2] is not None or one_by_one[0] == text


@pytest.mark.parametrize("token", ["x", "Ã", "<|end|>"], ids=["text", "invalid", "special"])
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_the_cost_of_a_token_does_not_grow(token, skip_special_tokens, monkeypatch):
    decoded: list[int] = []
    decode = TextDecoder._decode

    def counted(self: TextDecoder, token_ids: list[int]) -> str:
        decoded.append(len(token_ids))
        return decode(self, token_ids)

    monkeypatch.setattr(TextDecoder, "_decode", counted)
    pieces(BYTE_LEVEL, ids_of(BYTE_LEVEL, token) * 1000, skip_special_tokens=skip_special_tokens)
    assert max(decoded) <= PROMPT_TAIL + MAX_PENDING + 1
    assert len(decoded) <= 2 * 1000 + 1


@pytest.fixture(scope="module")
def default_tokenizer() -> Tokenizer:
    folder = prepare_default()
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.slow
def test_the_default_tokenizer_on_random_text(default_tokenizer: Tokenizer):
    generator = random.Random(0)
    ranges = [(0x20, 0x7E), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0xA0, 0x24F), (0x0600, 0x06FF)]
    for _ in range(300):
        text = "".join(
            chr(generator.randint(*generator.choice(ranges)))
            + generator.choice(["", "", " ", "\u200d", "\ufe0f"])
            for _ in range(60)
        )
        ids = default_tokenizer.encode(text, add_special_tokens=False).ids
        made = pieces(default_tokenizer, ids, size=generator.randint(1, 6))
        assert "".join(made) == text
        assert "\ufffd" not in "".join(made)
    for _ in range(300):
        ids = [generator.randrange(default_tokenizer.get_vocab_size()) for _ in range(100)]
        whole = default_tokenizer.decode(ids, skip_special_tokens=True)
        assert "".join(pieces(default_tokenizer, ids, size=generator.randint(1, 6))) == whole
