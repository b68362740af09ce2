"""The dashboard *Overview*: traffic, latency, queue, memory and errors."""

from __future__ import annotations

from math import inf

from grafana_foundation_sdk.builders.dashboard import Row
from panels import Panel, bars, facts, heat, lines, row, tile
from queries import mean, quantile, quantiles, rate, ratio, series, share_under

GOOD_WHEN_HIGH = {-inf: "red", 0.95: "orange", 0.99: "green"}
GOOD_WHEN_LOW = {-inf: "green", 0.8: "orange", 0.95: "red"}

# `model` of this metric is "target" or "draft".
KV_USAGE = series("kv_cache_usage_ratio", 'instance=~"$instance"')
ANSWERED = rate("request_success_total", window="$__range")
FAILED = rate("request_failure_total", more='reason=~"engine_error|internal_error"', window="$__range")
REFUSED = rate("admission_rejections_total", window="$__range")


def overview() -> list[Panel | Row]:
    """Rows and panels, from the top."""
    return [
        row("At a glance"),
        tile("Servers", "Servers that answer scrapes.", f"count({series('build_info')})"),
        tile(
            "Availability",
            "Share of what neither failed inside the server nor was answered 503, over the time shown.",
            f"{ANSWERED} / ({ANSWERED} + {FAILED} + {REFUSED})",
            "percentunit",
            GOOD_WHEN_HIGH,
        ),
        tile(
            "First token within 1 s",
            "Share of requests, queueing included, over the time shown.",
            share_under("time_to_first_token_seconds", "1.0"),
            "percentunit",
            GOOD_WHEN_HIGH,
        ),
        tile(
            "Next tokens within 100 ms",
            "Share of the tokens after the first, over the time shown.",
            share_under("inter_token_latency_seconds", "0.1"),
            "percentunit",
            GOOD_WHEN_HIGH,
        ),
        tile("Tokens per second", "Delivered to clients.", rate("generation_tokens_total")),
        tile(
            "KV memory in use",
            "Rows held by live requests over all rows, of the fullest model and server.",
            f"max({KV_USAGE})",
            "percentunit",
            GOOD_WHEN_LOW,
        ),
        row("Traffic"),
        lines(
            "Tokens",
            "Delivered tokens, and prompt tokens that were computed, not found in the cache.",
            {"generated": rate("generation_tokens_total"), "prompt": rate("prompt_tokens_total")},
            "cps",
        ),
        lines(
            "Finished sequences",
            "By what ended them; abort: the client went away, or the server's drain timeout was over.",
            {"{{finished_reason}}": rate("request_success_total", "finished_reason")},
            "reqps",
            stacked=True,
        ),
        lines(
            "Failures and refusals",
            "Failed requests by reason, and requests answered 503.",
            {
                "{{reason}}": rate("request_failure_total", "reason"),
                "503 {{reason}}": rate("admission_rejections_total", "reason"),
            },
            "reqps",
        ),
        lines(
            "Queue",
            "Sequences that take part in steps, and sequences that wait to.",
            {
                "running": f"sum({series('num_requests_running')})",
                "waiting": f"sum({series('num_requests_waiting')})",
            },
        ),
        lines(
            "Time in the parts of a request",
            "90 of 100 sequences took at most this long to: wait, compute the prompt, generate.",
            {
                "queue": quantile(0.9, "request_queue_time_seconds"),
                "prefill": quantile(0.9, "request_prefill_time_seconds"),
                "decode": quantile(0.9, "request_decode_time_seconds"),
            },
            "s",
        ),
        lines(
            "Whole request",
            "Arrival to last token.",
            quantiles("e2e_request_latency_seconds"),
            "s",
        ),
        row("Latency"),
        lines(
            "Time to first token", "Arrival to first token.", quantiles("time_to_first_token_seconds"), "s"
        ),
        heat("Times to first token", "Requests per second.", "time_to_first_token_seconds", "s"),
        lines(
            "Inter-token latency",
            "Time per token after the first; tokens of one step share its time.",
            quantiles("inter_token_latency_seconds"),
            "s",
        ),
        heat("Inter-token latencies", "Tokens per second.", "inter_token_latency_seconds", "s"),
        heat("Whole requests", "Sequences per second.", "e2e_request_latency_seconds", "s"),
        row("Engine"),
        lines(
            "KV memory",
            "Rows held by live requests over all rows. What is cached for later prompts does not count.",
            {"{{instance}} {{model}}": KV_USAGE},
            "percentunit",
        ),
        lines(
            "Prefix cache",
            "Share of the prompt tokens that were found in the cache.",
            {"found": ratio("prefix_cache_hits_total", "prefix_cache_queries_total")},
            "percentunit",
        ),
        lines(
            "Preemptions",
            "Sequences put back into the queue because KV memory ran out; their rows are computed again.",
            {"per second": rate("num_preemptions_total")},
            "cps",
        ),
        lines("Tokens in a step", "Rows of the target's forward, mean.", {"mean": mean("iteration_tokens")}),
        heat("Sizes of steps", "Steps per second, by their rows.", "iteration_tokens"),
        bars(
            "Time by phase",
            "Share of the steps' time, one bar a phase.",
            f"{rate('step_seconds_sum', 'phase')} / scalar({rate('step_seconds_sum')})",
            "{{phase}}",
        ),
        row("What runs"),
        facts("Servers", "Version and models.", series("build_info"), ("Time", "Value", "__name__", "job")),
    ]
