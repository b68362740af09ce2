"""Reasoning that a model writes before its answer, split off as it comes."""

from __future__ import annotations

BEGIN, END = "<think>", "</think>"


def may_reason(template: object) -> bool:
    """Whether a chat template knows of reasoning."""
    return isinstance(template, str) and BEGIN in template and END in template


class ReasoningSplitter:
    """Of one answer. is_open: the prompt itself ends inside the reasoning."""

    def __init__(self, *, is_open: bool) -> None:
        self._inside: bool | None = True if is_open else None  # None: not known yet
        self._held = ""
        self._is_first = True  # nothing of the part at hand was shown: white space in front is left out

    def feed(self, text: str, *, last: bool) -> tuple[str, str]:
        """What ``text`` adds to the reasoning, and to the answer. last: the answer ends with it."""
        text, self._held = self._held + text, ""
        if self._inside is None:
            start = text.lstrip()
            if start.startswith(BEGIN):
                self._inside, text = True, start[len(BEGIN) :]
            elif BEGIN.startswith(start) and not last:
                self._held = text
                return "", ""
            else:
                self._inside, self._is_first = False, False
                return "", text
        if not self._inside:
            return "", self._trimmed(text)
        reasoning, end, answer = text.partition(END)
        if end:
            reasoning = self._trimmed(reasoning).rstrip()
            self._inside, self._is_first = False, True
            return reasoning, self._trimmed(answer)
        if last:
            return self._trimmed(text).rstrip(), ""
        # The end may have begun, and white space in front of it is not shown.
        shown = text[: len(text) - _begun(text)].rstrip()
        self._held = text[len(shown) :]
        return self._trimmed(shown), ""

    def _trimmed(self, text: str) -> str:
        text = text.lstrip() if self._is_first else text
        self._is_first = self._is_first and not text
        return text


def _begun(text: str) -> int:
    """How much of the end of ``text`` may be the beginning of `END`."""
    return next((size for size in range(len(END) - 1, 0, -1) if text.endswith(END[:size])), 0)
