"""Values of the prompt as candidates for the slots of a JSON answer, across the structure between slots.

In the spirit of SchemaFill: the form gives the structure, the prompt what stands in it. One path may hold
the end of a value, what the grammar forces behind it, and the next value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from ..request import FormHelp, Request
from ..sources.base import Path, Source
from ..sources.rates import Guess, Rates
from .base import Constraint, few_members
from .prompt_values import PromptValues, Slot, slot_at_end
from .source import GrammarSource

# Kinds of tokens: what opens a value; its first one, by the key's name; the next one of a value that was
# begun; the first of any guess but the best; those behind, mostly right if that was; what closes a value.
_OPEN, _START, _NEXT, _OTHER, _INSIDE, _CLOSE, _FORCED = range(7)
_PRIORS = (0.95, 0.35, 0.7, 0.3, 0.95, 0.7, 1.0)
_TAIL = 48  # tokens of the answer that are looked at; a longer value is not followed to its end
_CLOSINGS = {True: ('",', '"}', '"]', '"'), False: (",", "}", "]")}  # behind strings, behind numbers


@dataclass(frozen=True, slots=True)
class _Filling:
    tokens: tuple[int, ...]
    kinds: tuple[int, ...]
    is_string: bool | None  # None: a string that is only opened


def form_sources(request: Request, constraint: Constraint, tokenizer: Tokenizer) -> tuple[Source, ...]:
    """What an answer's form gives to draft with, the surest last."""
    wanted, structured = request.speculation.form, request.sampling.structured
    sources: list[Source] = []
    has_slots = structured is not None and structured.kind not in ("regex", "choice")
    if FormHelp.PROMPT in wanted and has_slots:
        sources.append(SlotSource(constraint, tokenizer, request.prompt_token_ids))
    if FormHelp.GRAMMAR in wanted:
        sources.append(GrammarSource(constraint))
    return tuple(sources)


class SlotSource:
    """A `Source` for answers that are JSON in one layout."""

    name = "prompt"

    def __init__(self, constraint: Constraint, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._constraint = constraint
        self._tokenizer = tokenizer
        self._num_prompt = len(prompt)
        self._values = PromptValues(tokenizer.decode(list(prompt), skip_special_tokens=True))
        self._closings = {kind: self._tokens(texts) for kind, texts in _CLOSINGS.items()}
        self._rates = Rates(_PRIORS)
        self._said: tuple[Guess, ...] = ()
        self._at = -1  # tokens there were when it was said

    def paths(self, token_ids: Sequence[int], max_tokens: int) -> tuple[Path, ...]:
        tail = token_ids[max(self._num_prompt, len(token_ids) - _TAIL) :]
        text = self._decode(tail)
        guesses = [self._guess(filling, text, max_tokens) for filling in self._fillings(text, ())]
        self._said, self._at = tuple(guesses), len(token_ids)
        return tuple(guess.path(self._rates) for guess in guesses)

    def committed(self, token_ids: Sequence[int], start: int) -> None:
        if self._at == start:
            for guess in self._said:
                guess.settle(self._rates, token_ids[start:])
        self._said = ()

    def _guess(self, filling: _Filling, text: str, max_tokens: int) -> Guess:
        """What fills the slot that ``text`` ends in, and what follows as far as it can be told."""
        path: tuple[int, ...] = ()
        kinds: tuple[int, ...] = ()
        fillings = [filling]
        while fillings and len(path) < max_tokens:
            filling, *_ = fillings
            fillings = []
            for token, kind in zip(filling.tokens, filling.kinds, strict=True):
                if not self._constraint.accepts((*path, token)):
                    return Guess(path, kinds)
                path, kinds = (*path, token), (*kinds, kind)
            closing = self._closing(filling, path) if len(path) < max_tokens else None
            if closing is not None:
                path, kinds = (*path, closing), (*kinds, _CLOSE)
                while len(path) < max_tokens and (forced := few_members(self._constraint.allowed(path), 1)):
                    path, kinds = (*path, *forced), (*kinds, _FORCED)
                fillings = self._fillings(text + self._decode(path), path)
        return Guess(path[:max_tokens], kinds[:max_tokens])

    def _fillings(self, text: str, path: tuple[int, ...]) -> list[_Filling]:
        """Of the slot that ``text`` ends in, behind ``path``; those that the form takes, the likeliest first.

        Where nothing is known of a string it can still be opened.
        """
        slot = slot_at_end(text)
        if slot is None:
            return []
        found: list[_Filling] = []
        for is_string in (True, False) if slot.is_string is None else (slot.is_string,):
            values = self._values.candidates(replace(slot, is_string=is_string))
            quote = slot.lead + '"' if slot.is_string is None and is_string else ""
            found += [
                self._filling(slot, quote or slot.lead, value, is_string, is_best=not rank)
                for rank, value in enumerate(values)
            ]
            if quote:
                found.append(self._filling(slot, quote, "", None, is_best=True))
        return [one for one in found if self._constraint.accepts((*path, *one.tokens[:2]))]

    def _filling(
        self, slot: Slot, lead: str, value: str, is_string: bool | None, *, is_best: bool
    ) -> _Filling:
        """In the spelling of the whole value where that fits what there is of it."""
        encoding = self._tokenizer.encode(lead + value, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets]
        begun = len(slot.begun)
        if begun in starts:
            tokens = tuple(encoding.ids[starts.index(begun) :])
        else:
            tokens = tuple(self._tokenizer.encode(value[begun:], add_special_tokens=False).ids)
        opening = sum(start < len(lead) for start in starts)
        first = _OTHER if not is_best else _NEXT if begun else _START
        kinds = [_OPEN] * opening + [first]
        return _Filling(tokens, tuple((kinds + [_INSIDE] * len(tokens))[: len(tokens)]), is_string)

    def _closing(self, filling: _Filling, path: tuple[int, ...]) -> int | None:
        if filling.is_string is None:
            return None
        closings = self._closings[filling.is_string]
        return next((token for token in closings if self._constraint.accepts((*path, token))), None)

    def _tokens(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Those texts that are one token each."""
        encoded = (self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        return tuple(ids[0] for ids in encoded if len(ids) == 1)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
