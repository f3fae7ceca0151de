"""A synthetic history: the same cells every night, with noise, and what is planted into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from conf.schema import TrendConfig
from flows.runs.history import trends
from tasks.storage import tables
from tasks.storage.store import Store

Row = dict[str, Any]
FIRST = datetime(2026, 9, 1, 22, tzinfo=UTC)
OPERATORS = ("conv", "relu", "linear")

HEALTHY: Row = {
    "scheme": "8a8w", "soc": "SM8650", "device": "phone", "backend": "qnn", "farm": None, "verb": "run",
    "outcome": "passed", "pte_bytes": 70_000, "delegated_nodes": 17, "non_delegated_nodes": 1, "spill_bytes": 0,
    "operators_total": 18, "operators_compared": 12, "operators_introduced": 0, "final_snr_db": 30.0,
    "final_cosine": 0.999, "top1_agreement": 0.98, "accuracy": 0.95, "observer_effect_snr_db": 60.0,
    "latency_p50_ms": 2.0, "python": "3.11.7", "torch": "2.13.0", "executorch": "1.5.1", "torchao": "0.18.0",
    "qnn": "v2.49.40", "model_digest": "m", "scheme_digest": "s", "soc_digest": "c", "request_digest": "r",
}  # fmt: skip
"""A cell on a good night."""
SIGMA = {"final_snr_db": 0.05, "final_cosine": 1e-4, "observer_effect_snr_db": 0.5, "latency_p50_ms": 0.02}
"""The noise of each series, a standard deviation; 0.02 ms are 1 %. The others have none."""
OPERATOR_SIGMA_DB = 0.3


def run_of(night: int) -> str:
    return f"{FIRST + timedelta(days=night):%Y%m%dT%H%M%SZ}-0000"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something planted into one cell: its columns from a night on, or on that night alone."""

    cell: str
    night: int
    columns: Mapping[str, Any]
    alarms: frozenset[str]
    """The series that must be reported."""
    causes: tuple[str, ...] = ()
    nights: int = 1_000
    due: int | None = None
    """The night on which it is large enough to be seen, where it grows; else its first."""
    operators: Mapping[str, float] | None = None
    """What an operator's gap loses, in dB."""

    def holds(self, night: int) -> bool:
        return self.night <= night < self.night + self.nights

    @property
    def expected(self) -> int:
        return self.night if self.due is None else self.due


def by(amount: float) -> Callable[[float, int], float]:
    """A column that is more by an amount."""
    return lambda value, _: value + amount


def times(factor: float) -> Callable[[float, int], float]:
    return lambda value, _: value * factor


def drifting(amount: float, nights: int) -> Callable[[float, int], float]:
    """A column that is more by an amount every night, and stays where it is after so many."""
    return lambda value, since: value + amount * min(since + 1, nights)


def cell_row(model: str, night: int, changes: Sequence[Change], noise: np.random.Generator) -> Row:
    row = dict.fromkeys(tables.TABLES["cells"].names) | HEALTHY | {"run_id": run_of(night), "model": model}
    for change in changes:
        if change.cell == model and change.holds(night):
            for column, planted in change.columns.items():
                row[column] = planted(row[column], night - change.night) if callable(planted) else planted
    for column, sigma in SIGMA.items():
        drawn = float(noise.normal(0, sigma))
        row[column] = None if row[column] is None else row[column] + drawn
    return row


def operator_rows(cell: Row, night: int, changes: Sequence[Change], noise: np.random.Generator) -> list[Row]:
    lost = {
        name: loss
        for change in changes
        if change.cell == cell["model"] and change.holds(night)
        for name, loss in (change.operators or {}).items()
    }
    rows: list[Row] = []
    for index, name in enumerate(OPERATORS):
        for sample in range(2):
            row = dict.fromkeys(tables.TABLES["operators"].names) | {each: cell[each] for each in NAMES}
            gap = 40.0 - index - lost.get(name, 0.0) + float(noise.normal(0, OPERATOR_SIGMA_DB))
            row |= {"operator_index": index, "operator": name, "reference": "edge", "sample": sample}
            rows.append(row | {"status": "compared", "snr_db": gap - 5, "introduced_snr_db": gap})
    return rows


NAMES = ("run_id", "model", "scheme", "soc", "device", "backend")


def write_night(store: Store, cells: Sequence[Row], operators: Sequence[Row], config: TrendConfig) -> list[Row]:
    """A run with these rows, judged as a sweep judges it; its rows of `trends`."""
    (run_id,) = {cell["run_id"] for cell in cells}
    judged = trends(store, run_id, cells, operators, config)
    for table, rows in (("operators", operators), ("trends", judged), ("cells", cells)):
        tables.write(store, run_id, table, rows)
    return judged
