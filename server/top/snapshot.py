"""One scrape of a server's metrics, and what happened between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ..metrics import PREFIX

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples by name, without the prefix that all have, and labels."""

    time: float  # seconds, monotonic
    samples: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series of ``name`` that have these labels; 0 where there are none."""
        wanted = labels.items()
        return sum(value for found, value in self.samples.get(name, {}).items() if wanted <= set(found))

    def values(self, name: str, label: str) -> list[str]:
        """The values of one label that occur, in order."""
        found = {dict(labels).get(label) for labels in self.samples.get(name, {})}
        return sorted(value for value in found if value is not None)


def parse(text: str, time: float) -> Snapshot:
    """Of an exposition in Prometheus' text format. Raises ValueError if it is none, or not this server's."""
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(f"{PREFIX}_"):
                by_labels = samples.setdefault(sample.name.removeprefix(f"{PREFIX}_"), {})
                by_labels[frozenset(sample.labels.items())] = sample.value
    if "build_info" not in samples:
        raise ValueError(f"it has no metric {PREFIX}_build_info")
    return Snapshot(time, samples)


@dataclass(frozen=True, slots=True)
class Interval:
    """Between two snapshots of one server. A counter that fell began anew: the server was restarted."""

    first: Snapshot
    last: Snapshot

    @property
    def seconds(self) -> float:
        return max(self.last.time - self.first.time, 1e-9)

    def change(self, name: str, **labels: str) -> float:
        before, after = self.first.total(name, **labels), self.last.total(name, **labels)
        return after if after < before else after - before

    def rate(self, name: str, **labels: str) -> float:
        """Per second."""
        return self.change(name, **labels) / self.seconds

    def ratio(self, part: str, whole: str, **labels: str) -> float | None:
        """Of two counters; None where the whole did not move."""
        whole_change = self.change(whole, **labels)
        return self.change(part, **labels) / whole_change if whole_change else None

    def mean(self, histogram: str, **labels: str) -> float | None:
        return self.ratio(f"{histogram}_sum", f"{histogram}_count", **labels)

    def quantile(self, share: float, histogram: str) -> float | None:
        """Of the values observed, by straight lines within the buckets, as Prometheus does it."""
        name = f"{histogram}_bucket"
        bounds = sorted(map(float, self.last.values(name, "le")))
        written = {float(text): text for text in self.last.values(name, "le")}
        counts = [self.change(name, le=written[bound]) for bound in bounds]
        if not counts or counts[-1] == 0:
            return None
        wanted = share * counts[-1]
        below, lower = 0.0, 0.0
        for bound, count in zip(bounds, counts, strict=True):
            if count >= wanted:
                if math.isinf(bound):
                    return lower  # the largest bound there is
                return lower + (bound - lower) * (wanted - below) / max(count - below, 1e-9)
            below, lower = count, bound
        return lower
