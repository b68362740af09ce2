"""Chi-square tests of whether points in a cube are independent and uniform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SIGNIFICANCE = 1e-4  # of all tests together: how often what is uniform is called not uniform
_BINS = 20  # of one coordinate's test
_MOST_SIDES = 6  # of the joint test's cube
_EXPECTED = 5  # points in a bin, for chi-square to be chi-square


@dataclass(frozen=True, slots=True)
class UniformityTest:
    """A chi-square test of uniformity."""

    name: str
    bins: int
    count: int
    statistic: float
    p_value: float


def fewest_answers(tokens: int) -> int:
    """Points that the tests of a cube of so many dimensions need."""
    return max(100, _EXPECTED << tokens)


def uniformity_tests(places: Tensor) -> list[UniformityTest]:
    """One test for every position, and one for all together.

    places: [N, D] float64 in [0, 1], N at least `fewest_answers`.
    """
    count, depth = places.shape
    bins = min(_BINS, count // _EXPECTED)
    tests = [_test(f"token {d + 1}", _index(places[:, d], bins), bins) for d in range(depth)]
    if depth > 1:
        sides = min(_MOST_SIDES, math.floor((count / _EXPECTED) ** (1 / depth) + 1e-9))
        cell = (_index(places, sides) * sides ** torch.arange(depth)).sum(dim=1)
        tests.append(_test("all tokens jointly", cell, sides**depth))
    return tests


def verdict(tests: Sequence[UniformityTest]) -> float:
    """The chance that answers of a right server look as bad as this in one of the tests (Bonferroni)."""
    return min(1.0, len(tests) * min(test.p_value for test in tests))


def _index(places: Tensor, bins: int) -> Tensor:
    return (places * bins).long().clamp(max=bins - 1)


def _test(name: str, index: Tensor, bins: int) -> UniformityTest:
    expected = len(index) / bins
    counts = torch.bincount(index, minlength=bins).double()
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor((bins - 1) / 2, dtype=torch.float64)
    p_value = float(torch.special.gammaincc(half, statistic / 2))
    return UniformityTest(name, bins, len(index), float(statistic), p_value)
