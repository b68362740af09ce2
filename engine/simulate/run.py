"""Plain decoding, fixed trees and the controller at each batch size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..budget.base import StepCosts
from ..budget.costs import MeasuredCosts, reference_costs
from ..budget.record import AcceptanceRecord
from ..budget.simulation import Outcome, Regime, Scenario, simulate
from ..config import ConfigError
from ..cost.table import CostFileError, CostTable
from ..request import SpeculationMode
from .settings import USUAL_KEPT, SimulateSettings

REFERENCES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """One batch size. Ratios are goodputs over plain decoding's."""

    batch: int
    plain: float  # tokens a second; of costs that are part of the build: a plain step of one request
    auto: float
    auto_nodes: float  # mean candidates of a request's tree, steps without one included
    fixed: dict[str, float]  # by tree


@dataclass(frozen=True, slots=True)
class SimulationReport:
    costs: str  # where they come from
    kept: tuple[float, ...]
    rows: tuple[SimulatedRow, ...]


def run_simulation(settings: SimulateSettings, cost_folder: Path) -> SimulationReport:
    """cost_folder: where this machine's tables are kept. Raises ConfigError."""
    name, costs = load_costs(settings.costs, cost_folder)
    kept = settings.kept or USUAL_KEPT
    if settings.trace is not None:
        greedy = settings.temperature == 0
        record = AcceptanceRecord.load(settings.trace)
        kept = record.rates(settings.max_depth, greedy=greedy)
    rows = tuple(_row(settings, kept, batch, costs) for batch in settings.batch)
    return SimulationReport(name, kept, rows)


def load_costs(wanted: str | None, folder: Path) -> tuple[str, StepCosts]:
    """Costs and what they are called. Raises ConfigError."""
    if wanted in REFERENCES:
        return f"a usual pair on {wanted}", reference_costs(wanted)
    if wanted is None:
        tables = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        if not tables:
            raise ConfigError(
                f"no cost table was measured here yet ({folder} has none); start the server once, or use cpu "
                "or cuda",
                "costs",
            )
        path = tables[-1]
    else:
        path = Path(wanted)
    try:
        table = CostTable.load(path)
    except (OSError, CostFileError) as error:
        raise ConfigError(f"costs is {path}, which holds no cost table ({error})", "costs") from error
    return str(path), MeasuredCosts(table, table.learned)


def _row(settings: SimulateSettings, kept: tuple[float, ...], batch: int, costs: StepCosts) -> SimulatedRow:
    scenario = Scenario(
        (Regime(kept, settings.tokens),),
        batch,
        tokens=settings.tokens,
        prompt=settings.prompt,
        max_nodes=settings.max_nodes,
        max_depth=settings.max_depth,
        temperature=settings.temperature,
    )
    auto = simulate(scenario, costs)
    fixed = replace(scenario, mode=SpeculationMode.FIXED)
    return SimulatedRow(
        batch=batch,
        plain=_plain(auto),
        auto=auto.speedup,
        auto_nodes=sum(auto.sizes) / len(auto.sizes),
        fixed={
            str(tree): simulate(replace(fixed, max_nodes=tree.nodes, max_depth=tree.depth), costs).speedup
            for tree in settings.trees
        },
    )


def _plain(outcome: Outcome) -> float:
    return outcome.tokens / outcome.plain_seconds
