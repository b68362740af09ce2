"""What single tokens look like: their bytes, and a string that is honest about half characters."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "\u2581"  # stands for a space in SentencePiece's pieces


class TokenStrings:
    """Bytes and printed form of every token of one tokenizer, made when first asked for.

    A token may end inside a character; its bytes are known all the same, from the tokenizer's own
    spelling: byte-level alphabets, byte tokens and SentencePiece's spaces are undone.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = _byte_alphabet() if "ByteLevel" in kinds else None
        self._byte_tokens = "ByteFallback" in kinds
        self._spaced = bool(kinds & {"Metaspace", "ByteFallback"})
        self._known: dict[int, bytes] = {}

    def data(self, token_id: int) -> bytes:
        """The token's bytes, a leading space included. Raises ValueError for an id that does not exist."""
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._make(token_id)
        return known

    def text(self, token_id: int) -> str:
        r"""The token as text; one that is no whole text as ``bytes:\xe2\x80``, the way OpenAI prints it."""
        data = self.data(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _make(self, token_id: int) -> bytes:
        if (added := self._added.get(token_id)) is not None:
            return added.encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            raise ValueError(f"there is no token {token_id}")
        if self._byte_level is not None:
            if all(char in self._byte_level for char in piece):
                return bytes(self._byte_level[char] for char in piece)
            return str(piece).encode()
        if self._byte_tokens and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        if self._spaced:
            return str(piece).replace(_WORD_START, " ").encode()
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()


def _decoder_kinds(tokenizer: Tokenizer) -> set[str]:
    if tokenizer.decoder is None:
        return set()
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return {part["type"] for part in [state, *state.get("decoders", [])]}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte, the other way round."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
