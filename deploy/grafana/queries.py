"""PromQL for the dashboards: each function gives an expression over the chosen models and instances."""

from __future__ import annotations

SELECTOR = 'model=~"$model",instance=~"$instance"'
WINDOW = "$__rate_interval"


def series(name: str, selector: str = SELECTOR) -> str:
    """The series of one metric, without the prefix that all of them have."""
    return f"resispec_{name}{{{selector}}}"


def rate(name: str, by: str = "", more: str = "", window: str = WINDOW) -> str:
    """Per second, summed up to the labels ``by``; ``more`` narrows the selector."""
    selector = f"{SELECTOR},{more}" if more else SELECTOR
    return f"{_sum(by)} (rate({series(name, selector)}[{window}]))"


def mean(name: str, by: str = "") -> str:
    """The mean of a histogram's values."""
    return f"{rate(f'{name}_sum', by)} / {rate(f'{name}_count', by)}"


def quantile(share: float, name: str) -> str:
    """The value that ``share`` of a histogram's values stay under."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', 'le')})"


def quantiles(name: str) -> dict[str, str]:
    """Median and tails, by legend."""
    return {f"p{round(share * 100)}": quantile(share, name) for share in (0.5, 0.9, 0.99)}


def share_under(name: str, bound: str) -> str:
    """The share of a histogram's values up to the bucket bound, over the whole time shown."""
    under = rate(f"{name}_bucket", more=f'le="{bound}"', window="$__range")
    return f"{under} / {rate(f'{name}_count', window='$__range')}"


def ratio(part: str, whole: str, by: str = "") -> str:
    """Of two counters: how much of the whole the part is."""
    return f"{rate(part, by)} / {rate(whole, by)}"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
