"""Makes each request's sources, and keeps what requests of one owner share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from ..request import Request
from .base import Source
from .medusa import MedusaSource
from .ngram import NgramSource
from .prediction import PredictionSource
from .recycle import RecycleSource, TopTable
from .request_sources import RequestSources
from .suffix import RecentOutputs, SuffixSource

MEDUSA = MedusaSource.name
SOURCES = ("ngram", "prediction", "suffix", MEDUSA, "recycle")
_MAX_OWNERS = 64  # whose shared memory is kept; the least recent go first


@dataclass(slots=True)
class _Shared:
    """What requests of one owner with one ``cache_salt`` learn from each other."""

    outputs: RecentOutputs = field(default_factory=RecentOutputs)
    tops: TopTable = field(default_factory=TopTable)


class SourceFactory:
    """Not for use by two threads at once."""

    def __init__(self) -> None:
        self._shared: OrderedDict[tuple[str, str], _Shared] = OrderedDict()

    def make(self, request: Request, names: Collection[str]) -> RequestSources:
        """The sources among ``names`` (in the order of `SOURCES`) that can say something on the request.

        A request with a seed learns nothing from others, since its text must not depend on them.
        """
        own = request.sampling.seed is not None and request.sampling.temperature > 0
        sources: list[Source] = []
        if "prediction" in names and request.prediction_token_ids:
            sources.append(PredictionSource(request.prediction_token_ids))
        if "ngram" in names:
            sources.append(NgramSource(request.prompt_token_ids))
        if "suffix" in names and not own:
            outputs = self._of(request).outputs
            sources.append(SuffixSource(outputs, len(request.prompt_token_ids)))
        if MEDUSA in names:
            sources.append(MedusaSource())
        if "recycle" in names:
            sources.append(RecycleSource(TopTable() if own else self._of(request).tops))
        return RequestSources(sources)

    def _of(self, request: Request) -> _Shared:
        key = (request.owner, request.cache_salt)
        shared = self._shared.pop(key, None) or _Shared()
        self._shared[key] = shared
        if len(self._shared) > _MAX_OWNERS:
            self._shared.popitem(last=False)
        return shared
