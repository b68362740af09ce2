"""The Prometheus metrics, fed from the engine's stats. The only place that knows Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.exposition import choose_encoder

from resispec.engine.outputs import EngineInfo, FinishReason, SpeculationStats, StepStats
from resispec.engine.tree import DRAFT

PREFIX = "resispec"


def _decades(mantissas: tuple[float, ...], exponents: range) -> tuple[float, ...]:
    return tuple(float(f"{mantissa}e{exponent}") for exponent in exponents for mantissa in mantissas)


# Seconds; the first ones fine enough for tokens that are a millisecond apart.
TOKEN_BUCKETS = (0.0005, *_decades((1, 1.5, 2, 3, 4, 6, 8), range(-3, 1)))
REQUEST_BUCKETS = _decades((1, 2.5, 5), range(-3, 3))
PHASE_BUCKETS = _decades((1, 2, 5), range(-4, 1))
SPEEDUP_BUCKETS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 6, 10)
COUNT_BUCKETS = tuple(1 << power for power in range(13))

_REFUSALS = {  # by status
    400: "bad_request",
    401: "unauthorized",
    404: "not_found",
    413: "too_large",
    429: "rate_limited",
}


def _tree_buckets(most: int) -> tuple[int, ...]:
    """Tree sizes up to ``most``: each of the small ones, a few of the large ones."""
    sizes = (*range(1, 17), 24, 32, 48, 64, 96, 128, 256, 512)
    return (*(size for size in sizes if size < most), most)


class _Registry(CollectorRegistry):
    """A registry without the ``_created`` series, which double the output and help nobody here."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """All metrics of one app, in a registry of its own.

    Label sets are bounded: one model name, the verifiers, the phases, the reasons, and depths and
    child slots up to the tree's limits.
    """

    def __init__(self, info: EngineInfo, model_name: str, version: str) -> None:
        self._registry = _Registry(auto_describe=False)
        self._model = model_name
        self._acceptance: dict[str, list[tuple[int, int]]] = {}  # (kept, proposed) by depth

        self._build = self._gauge(
            *("build_info", "Always 1; the labels say what runs."),
            *("version", "draft", "dtype", "quantization", "compilation"),
        )
        self._built_with = (model_name, version, info.draft or "", info.dtype, info.quantization)
        self._build.labels(*self._built_with, info.compilation.state).set(1)
        # Not the served model's name: its `model` label is "target" or "draft".
        kv_usage = Gauge(
            "kv_cache_usage_ratio",
            "KV rows held by live requests over all rows.",
            ("model",),
            namespace=PREFIX,
            registry=self._registry,
        )
        self._kv_usage_target, self._kv_usage_draft = kv_usage.labels("target"), kv_usage.labels("draft")
        self._running = self._gauge("num_requests_running", "Sequences that take part in steps.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences in the engine's queue.")

        counter, seconds = self._counter, self._histogram
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens computed.")
        self._generation_tokens = counter("generation_tokens", "Tokens delivered.")
        self._success = counter("request_success", "Finished sequences.", "finished_reason")
        for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT):
            self._success.labels(model_name, reason.value)
        self._failure = counter("request_failure", "Failed requests.", "reason")
        for failure in ("engine_error", "internal_error", "other", *_REFUSALS.values()):
            self._failure.labels(model_name, failure)
        self._rejections = counter("admission_rejections", "Requests answered 503.", "reason")
        for rejection in ("queue_full", "draining"):
            self._rejections.labels(model_name, rejection)
        self._preemptions = counter("num_preemptions", "Sequences put back into the queue.")
        self._cache_queries = counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._cache_hits = counter("prefix_cache_hits", "Prompt tokens found.")
        self._ttft = seconds("time_to_first_token_seconds", "Arrival to first token.", REQUEST_BUCKETS)
        self._itl = seconds("inter_token_latency_seconds", "Time per token after the first.", TOKEN_BUCKETS)
        self._e2e = seconds("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_BUCKETS)
        self._queue = seconds("request_queue_time_seconds", "Arrival to first step.", REQUEST_BUCKETS)
        self._prefill = seconds("request_prefill_time_seconds", "First step to first token.", REQUEST_BUCKETS)
        self._decode = seconds("request_decode_time_seconds", "First token to last token.", REQUEST_BUCKETS)
        self._iteration = self._histogram("iteration_tokens", "Tokens in a target step.", COUNT_BUCKETS)
        self._phase = seconds("step_seconds", "Time of a step's phase.", PHASE_BUCKETS, "phase")
        self._phases: dict[str, Histogram] = {}

        self._drafts = counter("spec_decode_num_drafts", "Trees verified.", "verifier")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Candidates verified.", "verifier")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Candidates kept.", "verifier")
        self._exact = self._gauge(
            "verifier_exact", "1 if the verifier keeps the target's law, 0 if not.", "verifier"
        )
        self._proposed_per_pos = counter(
            "spec_decode_num_drafts_per_pos", "Trees with candidates at this depth.", "verifier", "position"
        )
        self._accepted_per_pos = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Candidates kept at a depth.", "verifier", "position"
        )
        self._accepted_per_child = counter(
            "spec_decode_num_accepted_tokens_per_child", "Kept, by child slot.", "verifier", "child"
        )
        self._proposed_per_source = counter(
            "spec_decode_num_draft_tokens_per_source", "Candidates verified, by proposer.", "source"
        )
        self._accepted_per_source = counter(
            "spec_decode_num_accepted_tokens_per_source", "Candidates kept, by proposer.", "source"
        )
        self._acceptance_rate = self._gauge(
            "acceptance_rate", "Kept over proposed at a depth, since the start.", "verifier", "position"
        )
        self._acceptance_length = self._histogram(
            "acceptance_length",
            "Tokens of a speculative step, correction or bonus included.",
            range(1, (info.max_tree_depth if info.proposers == (DRAFT,) else info.max_tree_nodes) + 2),
            "verifier",
        )
        self._tree_nodes = self._histogram(
            "tree_nodes", "Candidates in a tree.", _tree_buckets(info.max_tree_nodes), "verifier"
        )
        self._speedup = self._histogram(
            "request_speedup", "Speed of a request over plain decoding at the same load.", SPEEDUP_BUCKETS
        )
        self._speculation_off = counter("speculation_off", "Sequences stepped without a tree.", "reason")
        self._underflow = counter("residual_underflow", "Corrections drawn from an underflown residual.")

    def observe_step(self, stats: StepStats) -> None:
        """Take in one step; a listener for `EngineClient.on_stats`."""
        model = self._model
        if stats.compilation is not None:
            self._build.clear()
            self._build.labels(*self._built_with, stats.compilation.state).set(1)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage_target.set(stats.kv_usage_target)
        self._kv_usage_draft.set(stats.kv_usage_draft)
        self._prompt_tokens.inc(stats.prompt_tokens)
        self._generation_tokens.inc(stats.generation_tokens)
        self._preemptions.inc(stats.num_preemptions)
        self._cache_queries.inc(stats.prefix_cache_queries)
        self._cache_hits.inc(stats.prefix_cache_hits)
        self._underflow.inc(stats.residual_underflow)
        if stats.iteration_tokens:
            self._iteration.observe(stats.iteration_tokens)
        for seconds in stats.time_to_first_token:
            self._ttft.observe(seconds)
        for seconds in stats.inter_token_latency:
            self._itl.observe(seconds)
        for phase, seconds in stats.phase_seconds:
            if phase not in self._phases:  # looking a series up takes longer than observing
                self._phases[phase] = self._phase.labels(model, phase)
            self._phases[phase].observe(seconds)
        for reason, count in stats.speculation_off:
            self._speculation_off.labels(model, reason).inc(count)
        for finished in stats.finished:
            if finished.finish_reason is FinishReason.ERROR:
                self._failure.labels(model, "engine_error").inc()
            else:
                self._success.labels(model, finished.finish_reason.value).inc()
            self._e2e.observe(finished.metrics.e2e_ms / 1000)
            self._queue.observe(finished.metrics.queue_time_ms / 1000)
            self._prefill.observe(finished.metrics.prefill_time_ms / 1000)
            self._decode.observe(finished.metrics.generation_time_ms / 1000)
            speculation = finished.metrics.speculation
            if speculation is not None and speculation.speedup is not None:
                self._speedup.observe(speculation.speedup)
        for part in stats.speculation:
            self._observe_speculation(part)

    def _observe_speculation(self, part: SpeculationStats) -> None:
        labels = (self._model, part.verifier)
        self._exact.labels(*labels).set(part.exact)
        self._drafts.labels(*labels).inc(part.num_drafts)
        self._draft_tokens.labels(*labels).inc(part.num_draft_tokens)
        self._accepted.labels(*labels).inc(sum(part.accepted))
        acceptance_length = self._acceptance_length.labels(*labels)
        tree_nodes = self._tree_nodes.labels(*labels)
        for accepted in part.accepted:
            acceptance_length.observe(accepted + 1)
        for nodes in part.tree_nodes:
            tree_nodes.observe(nodes)
        for child, count in enumerate(part.accepted_by_child):
            self._accepted_per_child.labels(*labels, str(child)).inc(count)
        for counts in part.by_source:
            self._proposed_per_source.labels(self._model, counts.source).inc(counts.num_proposed)
            self._accepted_per_source.labels(self._model, counts.source).inc(counts.num_accepted)
        for depth, (kept, proposed) in enumerate(self._by_depth(part)):
            self._accepted_per_pos.labels(*labels, str(depth)).inc(kept)
            self._proposed_per_pos.labels(*labels, str(depth)).inc(proposed)
        self._update_rates(part)

    def _update_rates(self, part: SpeculationStats) -> None:
        totals = self._acceptance.setdefault(part.verifier, [])
        for depth, (kept, proposed) in enumerate(self._by_depth(part)):
            if depth == len(totals):
                totals.append((0, 0))
            totals[depth] = (totals[depth][0] + kept, totals[depth][1] + proposed)
            rate = self._acceptance_rate.labels(self._model, part.verifier, str(depth))
            rate.set(totals[depth][0] / max(1, totals[depth][1]))

    @staticmethod
    def _by_depth(part: SpeculationStats) -> Iterable[tuple[int, int]]:
        """(kept, proposed) at each depth that had candidates; none may have been kept at the deepest."""
        return zip_longest(part.accepted_by_depth, part.proposed_by_depth, fillvalue=0)

    def rejected(self, reason: str) -> None:
        """A request was answered 503: "queue_full" or "draining"."""
        self._rejections.labels(self._model, reason).inc()

    def failed(self, status: int) -> None:
        """A request was refused with ``status``, or crashed (500). The engine's failures are in its stats."""
        reason = _REFUSALS.get(status, "internal_error" if status >= 500 else "other")
        self._failure.labels(self._model, reason).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format that the ``Accept`` header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(name, text, ("model", *labels), namespace=PREFIX, registry=self._registry)
        return gauge if labels else gauge.labels(self._model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(name, text, ("model", *labels), namespace=PREFIX, registry=self._registry)
        # A series without further labels is there from the start, at 0, so that rates miss nothing.
        return counter if labels else counter.labels(self._model)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        histogram = Histogram(
            name, text, ("model", *labels), namespace=PREFIX, registry=self._registry, buckets=tuple(buckets)
        )
        return histogram if labels else histogram.labels(self._model)
