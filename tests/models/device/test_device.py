"""The contract of a device, held by every kind that this machine has."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from resispec.models.base import ModelError
from resispec.models.device import Device, device_for, find_device
from resispec.models.device.table import DEVICES

KINDS = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest) -> Device:
    return device_for(torch.device(request.param))


def test_what_it_says_of_itself(there: Device) -> None:
    assert there.device.type in DEVICES
    assert there.count() > 0
    assert there.description
    assert 0 < there.memory_share < 1
    assert there.step_nodes > 0
    nodes, depth = there.usual_tree
    assert nodes >= depth > 0
    assert there.free_memory() > 2**20


def test_the_default_dtype_multiplies(there: Device) -> None:
    a = torch.full((8, 8), 0.5, dtype=there.default_dtype, device=there.device)
    assert (a @ a).sum().item() == 128.0


@pytest.mark.parametrize("values", [[3, 1, 2], [[1, 2], [3, 4]], [], [2**40]])
def test_put_gives_the_same_integers(there: Device, values: list[int]) -> None:
    tensor = there.put(values)
    assert tensor.device.type == there.device.type
    assert tensor.dtype == torch.long
    assert tensor.tolist() == values


def test_put_keeps_or_takes_a_dtype(there: Device) -> None:
    assert there.put([0.5, 2.0], torch.float64).tolist() == [0.5, 2.0]
    assert there.put([True, False], torch.bool).tolist() == [True, False]
    assert there.put(np.array([[0.5]], dtype=np.float32)).dtype == torch.float32
    assert there.put(np.array([3], dtype=np.int64), torch.float64).tolist() == [3.0]


def test_what_was_put_is_the_tensors_own(there: Device) -> None:
    """Later copies do not write over earlier ones: what they pass through is not used again too soon."""
    tensors = [there.put([number] * 1000) for number in range(50)]
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))


def test_the_clock_sees_the_work_of_each_phase(there: Device) -> None:
    matrix = torch.randn(512, 512, device=there.device)
    _ = matrix @ matrix
    clock = there.clock()
    clock.mark()
    clock.mark()
    for _ in range(30):
        matrix = (matrix @ matrix).tanh()
    clock.mark()
    there.synchronize()
    began = time.perf_counter()
    nothing, work = clock.seconds()
    assert time.perf_counter() - began < 1.0
    assert 0 <= nothing < work


def test_a_clock_with_one_mark_has_no_phase(there: Device) -> None:
    clock = there.clock()
    clock.mark()
    assert clock.seconds() == []


def test_work_is_done_after_waiting(there: Device) -> None:
    ones = torch.ones(1000, 1000, device=there.device)
    total = (ones @ ones).sum()
    there.synchronize()
    assert total.item() == 1e9


def test_auto_finds_a_device_that_is_there() -> None:
    found = find_device("auto")
    assert DEVICES[found.type].count() > 0


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:x", "", "cuda:4096"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=f"device is {name!r}"):
        find_device(name)


def test_the_first_device_of_a_kind_needs_the_kind_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEVICES["cuda"], "count", lambda: 0)
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(ModelError, match="0 CUDA devices are visible"):
        find_device("cuda")
    monkeypatch.setattr(DEVICES["cuda"], "count", lambda: 2)
    assert find_device("auto") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ModelError, match="2 CUDA devices are visible"):
        find_device("cuda:2")


def test_a_cpu_without_our_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resispec.models.device.cpu.native_kernels", lambda: None)
    there = device_for(torch.device("cpu"))
    assert there.attentions == ("segments",)
    (sentence,) = there.shortcomings
    assert "not built" in sentence
