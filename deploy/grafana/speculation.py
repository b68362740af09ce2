"""The dashboard *Speculation*: what was drafted, kept and wasted."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Row
from panels import Panel, bars, heat, lines, row, tile
from queries import mean, quantile, rate, ratio, series

DRAFTED = "spec_decode_num_draft_tokens_total"
KEPT = "spec_decode_num_accepted_tokens_total"
TREES = "spec_decode_num_drafts_total"
KEPT_AT_DEPTH = "spec_decode_num_accepted_tokens_per_pos_total"
TREES_AT_DEPTH = "spec_decode_num_drafts_per_pos_total"
DRAFTED_BY_SOURCE = "spec_decode_num_draft_tokens_per_source_total"
KEPT_BY_SOURCE = "spec_decode_num_accepted_tokens_per_source_total"
KEPT_BY_CHILD = "spec_decode_num_accepted_tokens_per_child_total"


def speculation() -> list[Panel | Row]:
    """Rows and panels, from the top."""
    return [
        row("At a glance"),
        tile(
            "Tokens per speculative step",
            "Kept candidates and the one token that each step adds; 1 would be no gain at all.",
            mean("acceptance_length"),
        ),
        tile(
            "Kept at the first level",
            "Share of the trees of which at least one candidate was kept.",
            f"{rate(KEPT_AT_DEPTH, more=_AT_ROOT)} / {rate(TREES_AT_DEPTH, more=_AT_ROOT)}",
            "percentunit",
        ),
        tile(
            "Speedup",
            "Mean over requests: what plain decoding would have taken at the same load, over what it took.",
            mean("request_speedup"),
        ),
        tile("Candidates in a tree", "Mean.", mean("tree_nodes")),
        tile("Trees per second", "Trees verified.", rate(TREES), "cps"),
        tile(
            "Candidates wasted",
            "Share of the verified candidates that were not kept. A tree keeps one path at most, so this is "
            "high by design.",
            f"1 - {ratio(KEPT, DRAFTED)}",
            "percentunit",
        ),
        tile(
            "Underflown residuals",
            "Corrections, over the time shown, whose mass had rounded to zero.",
            f"sum(increase({series('residual_underflow_total')}[$__range]))",
        ),
        row("Speedup"),
        lines(
            "Speedup over plain decoding",
            "Of requests that ended: mean, and what the slowest tenth stays under.",
            {"mean": mean("request_speedup"), "p10": quantile(0.1, "request_speedup")},
        ),
        heat("Speedups", "Requests per second, by their speedup.", "request_speedup"),
        row("Acceptance"),
        lines(
            "Tokens per speculative step",
            "Mean, by verifier.",
            {"{{verifier}}": mean("acceptance_length", "verifier")},
        ),
        heat(
            "Lengths of kept paths",
            "Trees per second, by their tokens; 1: nothing was kept.",
            "acceptance_length",
        ),
        lines(
            "Acceptance by depth",
            "Share of the trees with candidates at a depth of which one was kept; 0 is the first level.",
            {"depth {{position}}": ratio(KEPT_AT_DEPTH, TREES_AT_DEPTH, "position")},
            "percentunit",
        ),
        bars(
            "Acceptance by depth since the start",
            "As each server reports it.",
            f"avg by (verifier, position) ({series('acceptance_rate')})",
            "{{verifier}}, depth {{position}}",
        ),
        lines(
            "Kept candidates by child",
            "Share of the kept candidates that were their parent's first, second, ... child.",
            {"child {{child}}": f"{rate(KEPT_BY_CHILD, 'child')} / scalar({rate(KEPT_BY_CHILD)})"},
            "percentunit",
            stacked=True,
        ),
        lines(
            "Kept per candidate, by proposer",
            "Kept candidates over verified ones: of the draft, and of each source of known candidates.",
            {"{{source}}": ratio(KEPT_BY_SOURCE, DRAFTED_BY_SOURCE, "source")},
            "percentunit",
        ),
        lines(
            "Kept per candidate",
            "Kept candidates over verified ones, by verifier.",
            {"{{verifier}}": ratio(KEPT, DRAFTED, "verifier")},
            "percentunit",
        ),
        lines(
            "Exactness",
            "Of the verifiers in use. 1: keeps the target's law; 0: does not, and its answers say so.",
            {"{{verifier}}": f"min by (verifier) ({series('verifier_exact')})"},
        ),
        row("Work"),
        lines(
            "Draft tokens",
            "Candidates that the target verified: kept, and wasted.",
            {"kept": rate(KEPT), "wasted": f"{rate(DRAFTED)} - {rate(KEPT)}"},
            "cps",
            stacked=True,
        ),
        heat("Sizes of trees", "Trees per second, by their candidates.", "tree_nodes"),
        lines(
            "Stepped without a tree",
            "Sequences per second that were decoded one token at a time, by reason.",
            {"{{reason}}": rate("speculation_off_total", "reason")},
            "cps",
        ),
        lines(
            "Time per step by phase",
            "Mean seconds of the phases, on top of each other.",
            {"{{phase}}": mean("step_seconds", "phase")},
            "s",
            stacked=True,
        ),
        lines(
            "Cost of drafting",
            "Time for drafting over the time for verifying.",
            {"draft / verify": f"{_phase('draft')} / {_phase('verify')}"},
            "percentunit",
        ),
        lines(
            "Tokens per target step",
            "Delivered tokens over steps, all sequences of a step together.",
            {"tokens": f"{rate('generation_tokens_total')} / {rate('iteration_tokens_count')}"},
        ),
    ]


_AT_ROOT = 'position="0"'


def _phase(name: str) -> str:
    return rate("step_seconds_sum", more=f'phase="{name}"')
