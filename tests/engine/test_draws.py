"""Draws from weights, and the uniform numbers behind every draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resispec.engine.sampling.draw import Residual, draw, draw_or_fall_back
from resispec.engine.sampling.uniforms import Stream, UniformSource, stream_key

pytestmark = pytest.mark.usefixtures("either_way")
LAST = 1 - 2.0**-53  # the largest uniform


def test_every_boundary_of_the_inverse() -> None:
    weights = torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    wanted = {0.0: 1, 0.25 - 2**-54: 1, 0.25: 3, 0.75 - 2**-54: 3, 0.75: 4, LAST: 4}
    uniforms = torch.tensor(list(wanted), dtype=torch.float64)
    drawn = draw(Residual.of(weights.expand(len(wanted), -1)), uniforms)
    assert drawn.tokens.tolist() == list(wanted.values())
    assert not drawn.empty.any()


def test_weight_zero_is_never_drawn() -> None:
    rng = np.random.default_rng(50)
    weights = torch.from_numpy(rng.random((2000, 300)) ** 9 * (rng.random((2000, 300)) < 0.05))
    weights[:, 17] += 1e-300  # no empty row
    uniforms = torch.from_numpy(rng.random(2000))
    uniforms[:1000:2], uniforms[1:1000:2] = 0.0, LAST
    drawn = draw(Residual.of(weights), uniforms)
    assert (weights.gather(1, drawn.tokens[:, None]) > 0).all()


def test_frequencies() -> None:
    """Chi-square over 6 cells, 60,000 draws: false alarm once in 10,000 (threshold 25.7 at 5 degrees)."""
    rng = np.random.default_rng(51)
    weights = torch.tensor([3.0, 0.5, 0.0, 1.0, 2.0, 0.25, 1.25], dtype=torch.float64)
    drawn = draw(Residual.of(weights.expand(60_000, -1)), torch.from_numpy(rng.random(60_000)))
    counts = drawn.tokens.bincount(minlength=7).double()
    expected = weights / weights.sum() * 60_000
    assert counts[2] == 0
    used = weights > 0
    assert float(((counts - expected)[used] ** 2 / expected[used]).sum()) < 25.7


def test_empty_rows_fall_back_and_are_marked() -> None:
    weights = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert draw(Residual.of(weights), torch.zeros(2, dtype=torch.float64)).empty.tolist() == [True, False]
    fallback = torch.tensor([[0.0, 0.0, 5.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    drawn = draw_or_fall_back(Residual.of(weights), fallback, torch.tensor([0.3, 0.3], dtype=torch.float64))
    assert drawn.tokens.tolist() == [2, 1]
    assert drawn.empty.tolist() == [True, False]


def test_numbers_depend_on_key_stream_and_position_alone() -> None:
    source = UniformSource()
    block = source.block([5, 6, 5], Stream.VERIFY, [10, 10, 11], 7)
    again = UniformSource().block([5], Stream.VERIFY, [10], 7)
    assert np.array_equal(block[:1], again)
    assert np.array_equal(source.block([5], Stream.VERIFY, [10], 3)[0], block[0, :3])
    others = [block[1], block[2], source.block([5], Stream.DRAFT, [10], 7)[0]]
    for other in others:
        assert not np.isin(other, block[0]).any()
    assert block.dtype == np.float64


def test_the_published_generator() -> None:
    """The same numbers as numpy's Philox, set up in the plain way."""
    bits = np.random.Philox(key=7 + (int(Stream.FINAL) << 64), counter=42 << 64)
    expected = np.random.Generator(bits).random(9)
    assert np.array_equal(UniformSource().block([7], Stream.FINAL, [42], 9)[0], expected)


def test_numbers_look_uniform_across_positions() -> None:
    """Mean and neighbour correlation of the first number over 20,000 positions: 5 standard errors."""
    first = UniformSource().block([123] * 20_000, Stream.DRAFT, range(20_000), 1)[:, 0]
    assert abs(first.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 20_000)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**70 + 5])
def test_seeds_of_any_size(seed: int) -> None:
    key = stream_key(seed)
    assert 0 <= key < 2**64
    assert key == stream_key(seed)
    UniformSource().block([key], Stream.DRAFT, [0], 1)


def test_without_a_seed_every_request_has_its_own_key() -> None:
    assert len({stream_key(None) for _ in range(100)}) == 100


def test_first_numbers_are_those_of_the_rows_in_any_order() -> None:
    """Of more requests than are kept, forwards, back, and over positions left out."""
    source, plain = UniformSource(), UniformSource()
    asked = [(key, position) for position in (5, 6, 20, 21, 22, 7, 300, 21) for key in (9, 2**64 - 1)]
    asked += [(key, 3) for key in range(1100)] + [(9, 22)]
    for key, position in asked:
        for stream in (Stream.FINAL, Stream.VERIFY):
            assert source.first(key, stream, position) == plain.block([key], stream, [position], 1)[0, 0]
