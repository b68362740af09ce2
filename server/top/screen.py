"""The figures as lines for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .snapshot import Interval, Snapshot

_PHASES = "schedule", "draft", "verify", "sample", "commit"
_BAR = 24
_SPARKS = "▁▂▃▄▅▆▇█"
_MUTED = "dim"


def screen(url: str, interval: Interval, history: Sequence[float], problem: str | None) -> RenderableType:
    """history: tokens per second, oldest first. problem: why the figures are old, if they are."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, line in (
        ("requests", _requests(interval)),
        ("tokens", _tokens(interval)),
        ("", Text(_sparks(history), style="cyan")),
        ("latency", _latency(interval)),
        ("KV memory", _memory(interval.last)),
        *_speculation(interval),
        ("steps", _steps(interval)),
    ):
        table.add_row(name, line)
    parts: list[RenderableType] = [_title(url, interval), Text(), table]
    if problem is not None:
        parts += [Text(), Text(problem, style="bold red")]
    return Group(*parts)


def _title(url: str, interval: Interval) -> Text:
    (build,) = (dict(labels) for labels in interval.last.samples["build_info"])
    draft = build.get("draft") or "none"
    title = Text.assemble(("ResiSpec ", "bold"), build.get("version", ""), "  ", (url, "underline"), "\n")
    about = f"{build.get('model', '?')}, draft {draft}, {build.get('dtype', '?')}"
    about += f", {build['quantization']} weights" if build.get("quantization", "none") != "none" else ""
    about += ", compiled" if build.get("compilation") == "on" else ""
    return title.append(f"{about}; figures of the last {interval.seconds:.0f} s", style=_MUTED)


def _requests(interval: Interval) -> Text:
    last = interval.last
    line = Text(f"{last.total('num_requests_running'):.0f} running, ")
    waiting = last.total("num_requests_waiting")
    line.append(f"{waiting:.0f} waiting", style="yellow" if waiting else "")
    line.append(f", {interval.rate('request_success_total') * 60:.1f} finished a minute")
    failed = interval.change("request_failure_total") + interval.change("admission_rejections_total")
    if failed:
        line.append(f", {failed:.0f} refused or failed", style="red")
    return line


def _tokens(interval: Interval) -> Text:
    cached = interval.ratio("prefix_cache_hits_total", "prefix_cache_queries_total")
    line = Text(f"{interval.rate('generation_tokens_total'):.1f}/s generated, ")
    line.append(f"{interval.rate('prompt_tokens_total'):.1f}/s of prompts")
    return line if cached is None else line.append(f", {cached:.0%} of prompts cached")


def _latency(interval: Interval) -> Text:
    first, between = "time_to_first_token_seconds", "inter_token_latency_seconds"
    return Text(
        f"first token {_ms(interval.quantile(0.5, first))}, p95 {_ms(interval.quantile(0.95, first))};  "
        f"between tokens {_ms(interval.quantile(0.5, between))}, "
        f"p95 {_ms(interval.quantile(0.95, between))}"
    )


def _memory(last: Snapshot) -> Text:
    share = last.total("kv_cache_usage_ratio", model="target")
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    return _bar(share, style).append(f" {share:.0%} held by running requests")


def _speculation(interval: Interval) -> list[tuple[str, Text]]:
    drafts = "spec_decode_num_drafts_total"
    used = [
        name for name in interval.last.values(drafts, "verifier") if interval.change(drafts, verifier=name)
    ]
    rows = []
    for name in used:
        labels = {"verifier": name}
        exact = interval.last.total("verifier_exact", **labels)
        kept = interval.ratio(
            "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total", **labels
        )
        line = Text(f"{name}{'' if exact else ' (not exact)'}: ", style="" if exact else "yellow")
        line.append(f"{interval.mean('acceptance_length', **labels) or 0:.2f} tokens a step", style="bold")
        line.append(
            f", trees of {interval.mean('tree_nodes', **labels) or 0:.1f}, {kept or 0:.0%} of them kept"
        )
        line.append(f"; by depth {_by_depth(interval, name)}", style=_MUTED)
        rows.append(("speculation", line))
    off = [
        f"{interval.change('speculation_off_total', reason=reason):.0f} {reason}"
        for reason in interval.last.values("speculation_off_total", "reason")
        if interval.change("speculation_off_total", reason=reason)
    ]
    if off:
        rows.append(
            ("" if rows else "speculation", Text(f"steps without a tree: {', '.join(off)}", style=_MUTED))
        )
    return rows or [("speculation", Text("no trees", style=_MUTED))]


def _by_depth(interval: Interval, verifier: str) -> str:
    kept, had = "spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_drafts_per_pos_total"
    rates = [
        interval.ratio(kept, had, verifier=verifier, position=position)
        for position in sorted(interval.last.values(had, "position"), key=int)
    ]
    return " ".join(f"{rate:.2f}" for rate in rates if rate is not None) or "-"


def _steps(interval: Interval) -> Text:
    spent = {phase: interval.change("step_seconds_sum", phase=phase) for phase in _PHASES}
    total = sum(spent.values())
    count = interval.change("step_seconds_count", phase="verify")
    if not total or not count:
        return Text("none", style=_MUTED)
    shares = ", ".join(f"{phase} {seconds / total:.0%}" for phase, seconds in spent.items() if seconds)
    rows = interval.mean("iteration_tokens") or 0
    return Text(
        f"{count / interval.seconds:.1f}/s, {total / count * 1e3:.1f} ms, {rows:.1f} tokens each; {shares}"
    )


def _bar(share: float, style: str) -> Text:
    full = round(min(max(share, 0.0), 1.0) * _BAR)
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), _MUTED))


def _sparks(values: Sequence[float]) -> str:
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    return "".join(_SPARKS[min(int(value / most * len(_SPARKS)), len(_SPARKS) - 1)] for value in values)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
