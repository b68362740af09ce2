"""States by KV row: joined later, they are what they would be joined at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from resispec.models.device.cpu import CpuDevice
from resispec.models.states import Parts, RowStates

ROWS, SIZE = 40, 6
CPU = torch.device("cpu")


class Joiner:
    """Gives numbers of its parts that any grouping gives to the bit, and keeps count."""

    def __init__(self) -> None:
        self.rows: list[int] = []  # of each call
        self.failing = False

    def __call__(self, parts: Parts) -> Tensor:
        if self.failing:
            raise MemoryError("no room")
        self.rows.append(len(parts[0]))
        return parts[0] + 2 * parts[1] * parts[2]


def parts_of(count: int) -> list[Tensor]:
    return [torch.randn(count, SIZE) for _ in range(3)]


def all_rows(states: RowStates) -> Tensor:
    return states.read(torch.arange(ROWS))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], RowStates]:
    def states(defers: bool) -> RowStates:
        with monkeypatch.context() as patch:
            patch.setattr(CpuDevice, "reads_freely", defers)
            return RowStates(ROWS, SIZE, torch.float32, CPU)

    return states


def test_a_read_joins_all_steps_in_one_go(make: Callable[[bool], RowStates]) -> None:
    states, join = make(True), Joiner()
    steps = [([3, 9], parts_of(2)), ([4], parts_of(1)), ([20, 5, 21], parts_of(3))]
    for rows, parts in steps:
        states.write_parts(torch.tensor(rows), parts, join)
    assert join.rows == []
    expected = torch.zeros(ROWS, SIZE)
    for rows, parts in steps:
        expected[rows] = parts[0] + 2 * parts[1] * parts[2]
    assert torch.equal(all_rows(states), expected)
    assert torch.equal(all_rows(states), expected)
    assert join.rows == [6]


def test_a_row_written_again_is_joined_once(make: Callable[[bool], RowStates]) -> None:
    states, join = make(True), Joiner()
    steps = [([1, 2, 3], parts_of(3)), ([2, 3], parts_of(2)), ([3], parts_of(1))]
    for rows, parts in steps:
        states.write_parts(torch.tensor(rows), parts, join)
    last = Joiner()(steps[-1][1])
    assert torch.equal(states.read(torch.tensor([3])), last)
    assert join.rows == [3]
    states.write_parts(torch.tensor([7]), parts_of(1), join)
    states.write(torch.tensor([7]), last)
    assert torch.equal(states.read(torch.tensor([7])), last)
    assert join.rows == [3], "what was overwritten was joined"


def test_many_rows_are_joined_unread(make: Callable[[bool], RowStates]) -> None:
    states, join = make(True), Joiner()
    for _ in range(127):
        states.write_parts(torch.tensor([5]), parts_of(1), join)
    assert join.rows == []
    states.write_parts(torch.tensor([6]), parts_of(1), join)
    assert join.rows == [2]
    states.write_parts(torch.arange(200) % ROWS, parts_of(200), join)
    assert join.rows == [2, ROWS]
    all_rows(states)
    assert join.rows == [2, ROWS]


def test_one_position_earlier(make: Callable[[bool], RowStates]) -> None:
    states, join = make(True), Joiner()
    parts = parts_of(3)
    states.write_parts(torch.tensor([9, 10, 0]), parts, join)
    found = states.before(torch.tensor([10, 11, 1, 0, 10]), torch.tensor([4, 5, 1, 0, 0]))
    assert torch.equal(found, torch.cat([Joiner()(parts), torch.zeros(2, SIZE)]))


def test_a_join_that_fails_is_made_up_for(make: Callable[[bool], RowStates]) -> None:
    """The step that fails of it is run again, and neither its rows nor those of others are lost."""
    states, join = make(True), Joiner()
    earlier, parts = parts_of(1), parts_of(1)
    states.write_parts(torch.tensor([4]), earlier, join)
    join.failing = True
    with pytest.raises(MemoryError):
        states.read(torch.tensor([4]))
    join.failing = False
    states.write_parts(torch.tensor([5]), parts, join)
    expected = torch.cat([Joiner()(earlier), Joiner()(parts)])
    assert torch.equal(states.read(torch.tensor([4, 5])), expected)


@pytest.mark.parametrize("seed", range(20))
def test_joined_later_is_joined_at_once(seed: int, make: Callable[[bool], RowStates]) -> None:
    """Whatever is done to the rows meanwhile. Steps run in inference mode, copies of prefixes do not."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    later, now = make(True), make(False)
    join, join_now = Joiner(), Joiner()
    for _ in range(200):
        rows = torch.tensor(chance.sample(range(ROWS), chance.randint(1, 12)))
        kind = chance.choices(["step", "write", "move", "copy", "clear", "read"], [6, 1, 3, 3, 1, 1])[0]
        start, other, length = chance.randrange(20), chance.randrange(20), chance.randint(1, 20)
        with torch.inference_mode(kind in ("step", "move", "clear")):
            parts = parts_of(len(rows))
            for states, joiner in ((later, join), (now, join_now)):
                match kind:
                    case "step":
                        states.write_parts(rows, parts, joiner)
                    case "write":
                        states.write(rows, parts[0])
                    case "move":  # whose sources and destinations overlap
                        states.move(rows, rows.roll(1))
                    case "copy":
                        states.copy(start, other, length)
                    case "clear":
                        states.clear(start, length)
            if kind == "read":
                assert torch.equal(later.read(rows), now.read(rows))
    assert torch.equal(all_rows(later), all_rows(now))
    assert len(join.rows) < len(join_now.rows) / 2


def test_parts_are_held_as_they_are(make: Callable[[bool], RowStates]) -> None:
    """Without a copy, but the numbers of the rows may be written over, as a recorded step's are."""
    states, join = make(True), Joiner()
    rows, parts = torch.tensor([8]), parts_of(1)
    states.write_parts(rows, parts, join)
    rows[0] = 3
    expected = Joiner()(parts)
    assert torch.equal(states.read(torch.tensor([8])), expected)
    assert torch.equal(states.read(torch.tensor([3])), torch.zeros(1, SIZE))
