"""The sources of one request, asked together."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ..known_tree import NOTHING_KNOWN, KnownTree
from .base import Foreseer, OutputCollector, Source, TopsObserver, TopTokens
from .merge import merge


class RequestSources:
    """In the order given, the first gets the credit for what several say."""

    def __init__(self, sources: SequenceOf[Source] = ()) -> None:
        self._sources = tuple(sources)
        self._observers = [source for source in self._sources if isinstance(source, TopsObserver)]
        self._foreseers = [source for source in self._sources if isinstance(source, Foreseer)]
        self._collectors = [source for source in self._sources if isinstance(source, OutputCollector)]

    def behind(self, source: Source) -> RequestSources:
        """The same with ``source`` before them."""
        return RequestSources((source, *self._sources))

    @property
    def wants_tops(self) -> bool:
        return bool(self._observers)

    @property
    def looks_ahead(self) -> bool:
        return bool(self._foreseers)

    def __bool__(self) -> bool:
        return bool(self._sources)

    def known_tree(
        self, token_ids: SequenceOf[int], max_nodes: int, max_depth: int, least: float
    ) -> KnownTree:
        """What may follow ``token_ids``. least: chance from which on a node is worth verifying."""
        if not self._sources or max_nodes < 1:
            return NOTHING_KNOWN
        said = [(source.name, source.paths(token_ids, max_nodes)) for source in self._sources]
        return merge(said, max_nodes, max_depth, least)

    def committed(
        self,
        token_ids: SequenceOf[int],
        start: int,
        tops: SequenceOf[TopTokens],
        ahead: SequenceOf[SequenceOf[int]] = (),
    ) -> None:
        """Tell all of ``token_ids[start:]``, then what the target ranked highest on the way, then what
        heads on its state say of the places behind ``token_ids``.
        """
        for source in self._sources:
            source.committed(token_ids, start)
        for observer in self._observers:
            observer.observe(tops)
        for foreseer in self._foreseers:
            foreseer.look_ahead(ahead, len(token_ids))

    def finished(self, token_ids: SequenceOf[int]) -> None:
        for source in self._collectors:
            source.finished(token_ids)
