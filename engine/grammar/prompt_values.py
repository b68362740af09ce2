"""Which strings and numbers of a prompt may be the value that a JSON answer is writing. Text in, text out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_CHARACTERS = 1 << 15  # of the prompt's end that are looked at
_MAX_PLACES = 8  # of one search
_MAX_VALUE = 96  # characters
_MAX_VALUES = 2  # for one slot

# A key, and behind it nothing yet, a string that is open, or a number.
_SLOT = re.compile(r'"((?:[^"\\]|\\.){1,64})":( ?)(?:(")([^"\\]{0,96})|(-?\d[\d.]*))?$')
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?![\w.]*\w)")
# Up to what parts phrases: punctuation, or the end of a sentence.
_PHRASE = re.compile(
    r"""[^\n,;:"'()\[\]{}<>|!?]{1,96}?(?=[.]?(?:\s|$)[^\w]*$|[.]\s|[\n,;:"'()\[\]{}<>|!?]|$)"""
)
_ADDRESS = re.compile(r"""[^\s,;"'()<>]+""")  # of mail or of the web: up to white space
_NAME_WORD = re.compile(r"[A-Z0-9].*|of|de|da|van|von|and|&")


@dataclass(frozen=True, slots=True)
class Slot:
    """The value at the end of a growing JSON text."""

    key: str
    begun: str  # what there is of the value
    is_string: bool | None  # None: nothing tells yet
    lead: str = ""  # what stands between the text and the value, its quote left out


def slot_at_end(text: str) -> Slot | None:
    """The slot that ``text``, or its last hundred characters, ends in; None: it ends elsewhere."""
    match = _SLOT.search(text)
    if match is None:
        return None
    key, space, quote, string, number = match.groups()
    if quote:
        return Slot(key, string, True)
    return Slot(key, number, False) if number else Slot(key, "", None, "" if space else " ")


class PromptValues:
    """The values of one prompt."""

    def __init__(self, prompt: str) -> None:
        self._text = prompt[-_MAX_CHARACTERS:]

    def candidates(self, slot: Slot) -> tuple[str, ...]:
        """Whole values that begin as the slot's does, whose kind is known: a few, the likeliest first.

        An empty slot is filled with what the prompt has behind the key's name; one that was begun, with
        phrases that begin so.
        """
        places = self._behind(slot.key) if not slot.begun else self._beginning(slot.begun)
        values: dict[str, None] = {}
        for place in places:
            value = self._value(place, slot)
            if len(value) > len(slot.begun) and value.startswith(slot.begun):
                values[value] = None
            if len(values) == _MAX_VALUES:
                break
        return tuple(values)

    def _behind(self, key: str) -> Iterator[int]:
        words = _WORDS.findall(key)
        if not words:
            return
        name = r"[\s_-]*".join(map(re.escape, words))
        pattern = re.compile(rf"(?<!\w){name}(?!\w)[\"'*]?\s*(?::|=|\bis\b)\s*[\"'*]*", re.IGNORECASE)
        for count, match in enumerate(pattern.finditer(self._text)):
            if count == _MAX_PLACES:
                return
            yield match.end()

    def _beginning(self, begun: str) -> Iterator[int]:
        place = self._text.find(begun)
        for _ in range(_MAX_PLACES):
            if place < 0:
                return
            if place == 0 or not self._text[place - 1].isalnum():
                yield place
            place = self._text.find(begun, place + 1)

    def _value(self, place: int, slot: Slot) -> str:
        if not slot.is_string:
            number = _NUMBER.match(self._text, place)
            return number[0] if number else ""
        address = _ADDRESS.match(self._text, place)
        if address and ("@" in address[0] or "://" in address[0]):
            return address[0].rstrip(".:!?")
        phrase = _PHRASE.match(self._text, place)
        return _name(phrase[0].rstrip(), len(slot.begun)) if phrase else ""


def _name(phrase: str, begun: int) -> str:
    """Of a phrase that begins with a name, the name; what was ``begun`` stays."""
    words = re.split(r"(?<=\S)(?=\s)", phrase)
    if not _NAME_WORD.match(words[0].strip()):
        return phrase
    end = len(words[0])
    for word in words[1:]:
        if end >= begun and not _NAME_WORD.fullmatch(word.strip()):
            break
        end += len(word)
    return phrase[:end]
