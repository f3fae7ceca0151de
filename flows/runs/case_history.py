"""The rows of `trends` about operator cases: those whose state is worse than in the last run that tried them."""

from collections.abc import Collection, Sequence
from typing import Any

from qnnsweep.flows.runs.changes import changes
from qnnsweep.flows.runs.history import CELLS, TARGET, target, trend_row
from qnnsweep.tasks.numerics.trend import BAD, Assessment, Night
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import CASE_STATES, TrendVerdict
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

SERIES = "state"
"""The name and the unit of the series. The number of a state is its position in `CASE_STATES`, the best is 0."""
_STATES = [*CASE_STATES]
_RUNS = 10
"""How many runs are read together."""

Key = tuple[str | None, ...]
"""A case: the names of its cell without the device, and its own name, see `_name`."""


def case_trends(store: Store, run_id: str, cells: Sequence[Row], cases: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows of `trends` for a run's rows of `atlas`. `cells`: the run's rows of `cells`.

    A case regressed if its state is worse than in the last earlier run that tried it, and it is still bad until it has
    its earlier state again. All other cases have no row. `exact` and `delegated` are equally good.
    """
    tried = {_key(case): case for case in cases if case["state"] != "not_tried"}
    before = _before(store, run_id, tried) if tried else {}
    if not before:
        return []
    runs = {row["run_id"] for row in before.values()}
    bad = _bad(store, runs)
    cells_of = {(row["run_id"], target(row)): row for row in select(store, "cells", CELLS, runs=runs, problems=set())}
    now = {target(cell): cell for cell in cells}
    rows: list[dict[str, Any]] = []
    for key, case in tried.items():
        earlier = before.get(key)
        if earlier is None:
            continue
        verdict = bad.get((earlier["run_id"], key))
        if verdict is not None and _rank(case) > verdict["level"]:
            rows.append(
                _row(case, earlier, verdict["level"], "still_bad", verdict["first_bad_run"], verdict["changed"])
            )
        elif verdict is None and _rank(case) > _rank(earlier):
            cell = cells_of.get((earlier["run_id"], target(earlier)))
            changed = changes(cell, now[target(case)]) if cell else []
            rows.append(_row(case, earlier, _rank(earlier), "regressed", run_id, changed))
    return rows


def _key(row: Row) -> Key:
    return (*target(row), _name(row))


def _name(row: Row) -> str:
    """Return the name of a case, with the device if it was not executed in the simulator."""
    return row["case"] if row["executed_on"] is None else f"{row['case']} on {row['executed_on']}"


def _rank(row: Row) -> float:
    return float(max(_STATES.index(row["state"]), _STATES.index("delegated")))


def _before(store: Store, run_id: str, tried: Collection[Key]) -> dict[Key, Row]:
    """Return the row of every case in the last earlier run that tried it."""
    runs = [run for run in tables.runs(store) if run < run_id]
    latest: dict[Key, Row] = {}
    while runs and len(latest) < len(tried):
        runs, chunk = runs[:-_RUNS], runs[-_RUNS:]
        rows = select(store, "atlas", ("run_id", *TARGET, "case", "executed_on", "state"), runs=chunk, problems=set())
        latest = {_key(row): row for row in rows if _key(row) in tried and row["state"] != "not_tried"} | latest
    return latest


def _bad(store: Store, runs: Collection[str]) -> dict[tuple[str, Key], Row]:
    """Return the rows of `trends` about bad cases, by run and case."""
    columns = ("run_id", *TARGET, "operator", "level", "verdict", "first_bad_run", "changed")
    rows = select(store, "trends", columns, where={"series": [SERIES], "verdict": BAD}, runs=runs, problems=set())
    return {(row["run_id"], (*target(row), row["operator"])): row for row in rows}


def _row(
    case: Row, earlier: Row, level: float, verdict: TrendVerdict, first_bad_run: str, changed: Sequence[str]
) -> dict[str, Any]:
    assessment = Assessment(verdict=verdict, first_bad_run=first_bad_run, nights=1, level=level)
    history = [Night(run=row["run_id"], value=_rank(row), passed=True) for row in (earlier, case)]
    return trend_row(case, SERIES, SERIES, history, assessment, changed, operator=_name(case))
