"""Mapped weights: what was read of their files is given back, and nothing else."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from resispec.models.mapped import MappedWeights
from resispec.models.pack import replace_linears

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")
SIZE = 1024  # of a square float32 matrix: 4 MiB


def mapped_model(path: Path, layers: int) -> nn.Sequential:
    """Linear layers whose weights lie in a mapped file."""
    torch.manual_seed(0)
    save_file({f"{layer}.weight": torch.randn(SIZE, SIZE) for layer in range(layers)}, path)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(layers)))
    model.load_state_dict(load_file(path), assign=True)
    return model.requires_grad_(False)


def weights_of(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def resident(path: Path) -> int:
    """Bytes of a file that this process has in memory."""
    return sum(area.rss for area in psutil.Process().memory_maps() if area.path == str(path))


def test_pages_are_given_back_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    model = mapped_model(path, 4)
    before = [weight.sum() for weight in weights_of(model)]
    weights = MappedWeights.of(model)
    assert resident(path) > 15 << 20
    weights.release()
    assert resident(path) == 0
    assert [weight.sum() for weight in weights_of(model)] == before


def test_a_mapping_that_was_written_to_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    model = mapped_model(path, 2)
    weight = weights_of(model)[0]
    weight[5, 7] = 42.0
    MappedWeights.of(model).release()
    assert weight[5, 7] == 42.0


def test_an_address_stays_mapped_when_the_model_has_let_it_go(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    model = mapped_model(path, 2)
    weights = MappedWeights.of(model)
    model.load_state_dict({name: torch.zeros(SIZE, SIZE) for name in model.state_dict()}, assign=True)
    assert any(area.path == str(path) for area in psutil.Process().memory_maps())
    weights.release()
    assert all(weight.count_nonzero() == 0 for weight in weights_of(model))


def test_weights_of_the_heap_are_none_of_its_business() -> None:
    model = nn.Sequential(nn.Linear(SIZE, SIZE))
    assert MappedWeights.of(model).mappings == ()


def test_plain_weights_go_as_they_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    model = mapped_model(path, 3)
    model.append(nn.Sequential(nn.Linear(SIZE, SIZE, bias=False)))  # of the heap
    plain = [weakref.ref(module) for module in model.modules() if type(module) is nn.Linear]
    seen: list[tuple[int, int]] = []

    def make(linear: nn.Linear) -> nn.Module:
        assert linear.weight.sum() != 0
        seen.append((sum(one() is not None for one in plain), resident(path)))
        return nn.Identity()

    assert replace_linears(model, make) == 4
    assert [alive for alive, _ in seen] == [4, 3, 2, 1]
    assert all(pages <= 5 << 20 for _, pages in seen)  # one matrix, and what the system reads ahead
