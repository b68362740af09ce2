"""The simulator's word beside what was measured: the engine's own costs, and what its trees really kept."""

from __future__ import annotations

from ..budget.record import AcceptanceRecord
from ..budget.simulation import Regime, Scenario, simulate
from ..engine import Engine
from ..request import SpeculationMode, SpeculationParams
from .workload import Workload

_REPEATS = 8  # of the same requests: fewer would add noise of their own


def simulated_goodput(
    engine: Engine, workload: Workload, speculation: SpeculationParams, record: AcceptanceRecord
) -> float:
    """Tokens a second of steps that only decode.

    The engine must have run the workload just now, and record hold what was kept in that run.
    """
    mode, limits = engine.tree_limits(speculation)
    if engine.info.draft is None:
        mode = SpeculationMode.OFF
    rates = record.rates(limits.max_depth, greedy=workload.temperature == 0)
    num_requests = len(workload.requests)
    scenario = Scenario(
        (Regime(rates, workload.tokens),),
        min(workload.batch, num_requests),
        tokens=workload.tokens - 1,
        rounds=-(-num_requests // workload.batch),
        repeats=_REPEATS,
        prompt=1 + sum(map(len, workload.requests)) // num_requests,
        max_nodes=limits.max_nodes,
        max_depth=limits.max_depth,
        mode=mode,
        temperature=workload.temperature,
    )
    return simulate(scenario, engine.controller.costs, engine.controller.settings).tokens_per_second
