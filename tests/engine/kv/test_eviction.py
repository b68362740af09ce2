"""The run that is given up is the stalest one, by trying all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resispec.engine.kv.eviction import stalest_run
from resispec.engine.kv.extents import Extent


@given(
    layout=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=9),
    spare=st.integers(0, 3),
    wanted=st.integers(1, 12),
    data=st.data(),
)
def test_the_stalest_then_the_shortest_run_is_found(layout, spare, wanted, data):
    extents, end = [], 0
    for gap, length, _ in layout:
        extents.append(Extent(end + gap, length))
        end += gap + length
    num_rows = end + spare
    finished = [extent for extent, (_, _, kept) in zip(extents, layout, strict=True) if kept]
    ages = {extent: age for age, extent in enumerate(data.draw(st.permutations(finished)))}

    def rank(first: int, last: int) -> tuple[int, int] | None:
        run = extents[first:last]
        start = extents[first - 1].end if first else 0
        stop = extents[last].start if last < len(extents) else num_rows
        if stop - start < wanted or not all(extent in ages for extent in run):
            return None
        return max(ages[extent] for extent in run), len(run)

    ranks = {
        (first, last): rank(first, last)
        for first in range(len(extents))
        for last in range(first + 1, len(extents) + 1)
    }
    possible = [value for value in ranks.values() if value is not None]
    found = stalest_run(extents, ages, num_rows, wanted)
    if not possible:
        assert found is None
    else:
        assert found is not None
        first = extents.index(found[0])
        assert ranks[first, first + len(found)] == min(possible)
