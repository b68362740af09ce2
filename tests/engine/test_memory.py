"""How many rows the KV memory gets, and what is said when they are too few."""

from __future__ import annotations

import pytest
import torch

from resispec.engine.config import ConfigError, EngineConfig
from resispec.engine.memory import MemoryPlan, plan_memory

CPU = torch.device("cpu")
ROW = 1000  # bytes


def plan(kv_memory: int, **settings: int) -> MemoryPlan:
    return plan_memory(EngineConfig("any", kv_memory=kv_memory, **settings), ROW, 512, 12, CPU)  # type: ignore[arg-type]


def test_as_many_full_requests_as_may_run() -> None:
    assert plan(10**9, max_num_seqs=3) == MemoryPlan(3 * 528, 512)  # 512 tokens and 12 candidates, in 16s


def test_no_more_than_was_given() -> None:
    assert plan(1000 * ROW, max_num_seqs=3).num_rows == 992


def test_a_context_is_cut_to_what_fits_and_it_is_said() -> None:
    cut = plan(200 * ROW)
    assert cut.max_model_len == cut.num_rows - 12 - 16
    assert cut.note is not None
    assert f"from 512 to {cut.max_model_len} tokens" in cut.note
    assert "196 KiB" in cut.note


@pytest.mark.parametrize(("kv_memory", "shorter"), [(10, None), (100 * ROW, 68)])
def test_advice_that_would_work(kv_memory: int, shorter: int | None) -> None:
    with pytest.raises(ConfigError) as raised:
        plan(kv_memory, max_model_len=512)
    assert raised.value.setting == "kv_memory"
    assert "which takes 516 KiB" in raised.value.message
    assert plan(516 << 10, max_model_len=512).max_model_len == 512
    if shorter is None:
        assert "max_model_len" not in raised.value.message
    else:
        assert f"max_model_len to {shorter} or less" in raised.value.message
        assert plan(kv_memory, max_model_len=shorter).max_model_len == shorter


def test_a_length_beyond_the_context() -> None:
    with pytest.raises(ConfigError, match="use 512 or less"):
        plan(10**9, max_model_len=513)
