"""A synthetic history: the same cells every night, with noise and with planted changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.history import trends
from qnnsweep.tasks.records.tables import CELL_COLUMNS
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

Row = dict[str, Any]
FIRST = datetime(2026, 9, 1, 22, tzinfo=UTC)
OPERATORS = ("conv", "relu", "linear")

HEALTHY: Row = {
    "scheme": "8a8w", "soc": "SM8650", "device": "phone", "backend": "qnn", "toolchain": "default", "farm": None,
    "verb": "run", "outcome": "passed", "pte_bytes": 70_000, "delegated_nodes": 17, "non_delegated_nodes": 1,
    "spill_bytes": 0, "operators_total": 18, "operators_compared": 12, "operators_introduced": 0, "final_snr_db": 30.0,
    "final_cosine": 0.999, "top1_agreement": 0.98, "accuracy": 0.95, "observer_effect_snr_db": 60.0,
    "latency_p50_ms": 2.0, "timed_on": "device", "python": "3.11.7", "torch": "2.13.0", "executorch": "1.5.1",
    "torchao": "0.18.0", "qnn": "v2.49.40", "model_digest": "m", "scheme_digest": "s", "soc_digest": "c",
    "request_digest": "r",
}  # fmt: skip
"""The columns of a cell on a good night."""
SIGMA = {"final_snr_db": 0.05, "final_cosine": 1e-4, "observer_effect_snr_db": 0.5, "latency_p50_ms": 0.02}
"""The noise of each series as a standard deviation; 0.02 ms is 1 %. The other series have no noise."""
OPERATOR_SIGMA_DB = 0.3


def run_of(night: int) -> str:
    return f"{FIRST + timedelta(days=night):%Y%m%dT%H%M%SZ}-0000"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change that is planted into one cell: its columns from a night on, or on some nights only."""

    cell: str
    night: int
    columns: Mapping[str, Any]
    alarms: frozenset[str]
    """The series that must be reported as regressed."""
    causes: tuple[str, ...] = ()
    nights: int = 1_000
    due: int | None = None
    """The night on which a growing change is large enough to be found; by default its first night."""
    operators: Mapping[str, float] | None = None
    """Maps an operator to the loss of its gap in dB."""

    def applies(self, night: int) -> bool:
        return self.night <= night < self.night + self.nights

    @property
    def expected(self) -> int:
        return self.night if self.due is None else self.due


def by(amount: float) -> Callable[[float, int], float]:
    """Return a change of a column by this amount."""
    return lambda value, _: value + amount


def times(factor: float) -> Callable[[float, int], float]:
    return lambda value, _: value * factor


def drifting(amount: float, nights: int) -> Callable[[float, int], float]:
    """Return a change of a column by this amount per night, constant after so many nights."""
    return lambda value, since: value + amount * min(since + 1, nights)


def cell_row(model: str, night: int, changes: Sequence[Change], noise: np.random.Generator) -> Row:
    row = dict.fromkeys(tables.schema_of("cells").names) | HEALTHY | {"run_id": run_of(night), "model": model}
    for change in changes:
        if change.cell == model and change.applies(night):
            for column, planted in change.columns.items():
                row[column] = planted(row[column], night - change.night) if callable(planted) else planted
    for column, sigma in SIGMA.items():
        error = float(noise.normal(0, sigma))
        row[column] = None if row[column] is None else row[column] + error
    return row


def operator_rows(cell: Row, night: int, changes: Sequence[Change], noise: np.random.Generator) -> list[Row]:
    lost = {
        name: loss
        for change in changes
        if change.cell == cell["model"] and change.applies(night)
        for name, loss in (change.operators or {}).items()
    }
    rows: list[Row] = []
    for index, operator in enumerate(OPERATORS):
        for sample in range(2):
            row = dict.fromkeys(tables.schema_of("operators").names) | {name: cell[name] for name in CELL_COLUMNS}
            gap = 40.0 - index - lost.get(operator, 0.0) + float(noise.normal(0, OPERATOR_SIGMA_DB))
            row |= {"operator_index": index, "operator": operator, "reference": "edge", "sample": sample}
            rows.append(row | {"status": "compared", "snr_db": gap - 5, "introduced_snr_db": gap})
    return rows


def write_night(store: Store, cells: Sequence[Row], operators: Sequence[Row], config: TrendConfig) -> list[Row]:
    """Write a run with these rows, compute its trends as a sweep does, and return the rows of `trends`."""
    (run_id,) = {cell["run_id"] for cell in cells}
    trend_rows = trends(store, run_id, cells, operators, config)
    for table, rows in (("operators", operators), ("trends", trend_rows), ("cells", cells)):
        tables.write(store, run_id, table, rows)
    return trend_rows
