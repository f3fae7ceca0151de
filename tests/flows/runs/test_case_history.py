"""Operator cases whose state became worse from one night to the next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnsweep.flows.runs.case_history import case_trends
from qnnsweep.flows.runs.regressions import regressions_markdown
from qnnsweep.tasks.records.tables import CELL_COLUMNS
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.runs.synthetic_history import HEALTHY, Row, run_of


def night(store: Store, number: int, states: Mapping[str, str], **changed: Any) -> list[Row]:
    """Write a run whose cases have these states, and return its rows of `trends`. `changed`: columns of the cell."""
    cell = dict.fromkeys(tables.schema_of("cells").names) | HEALTHY
    cell |= {"run_id": run_of(number), "model": "suite", **changed}
    names = {name: cell[name] for name in CELL_COLUMNS}
    empty = dict.fromkeys(tables.schema_of("atlas").names) | {"arch": 75, "operator": "add", "inputs": ""}
    rows = [empty | names | {"case": case, "state": state} for case, state in states.items()]
    trend_rows = case_trends(store, run_of(number), [cell], rows)
    for table, contents in (("atlas", rows), ("trends", trend_rows), ("cells", [cell])):
        tables.write(store, run_of(number), table, contents)
    return trend_rows


def summary(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["operator"], row["verdict"], row["first_bad_run"], row["changed"]) for row in rows]


def test_a_worse_state_is_a_regression_with_its_cause_until_the_state_is_as_before(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    assert night(store, 0, {"add": "exact", "median": "cpu"}) == []
    worse = night(store, 1, {"add": "refused", "median": "cpu"}, qnn="v2.50.1")
    assert summary(worse) == [("add", "regressed", run_of(1), ["qnn v2.49.40 -> v2.50.1"])]
    assert "| suite · 8a8w · SM8650 · phone | add state | refused | delegated |" in regressions_markdown(
        count([], worse)
    )
    still = night(store, 2, {"add": "cpu", "median": "delegated"}, qnn="v2.50.1")
    assert summary(still) == [("add", "still_bad", run_of(1), ["qnn v2.49.40 -> v2.50.1"])]
    assert night(store, 3, {"add": "delegated", "median": "delegated"}, qnn="v2.50.1") == []
    assert summary(night(store, 4, {"add": "delegated", "median": "wrong"})) == [
        ("median", "regressed", run_of(4), ["qnn v2.50.1 -> v2.49.40"])
    ]


def test_a_case_that_was_not_tried_is_compared_with_the_last_night_that_tried_it(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    night(store, 0, {"add": "exact", "sub": "exact"})
    for number in range(1, 14):
        assert night(store, number, {"add": "exact", "sub": "not_tried"}) == []
    assert summary(night(store, 14, {"add": "exact", "sub": "wrong"})) == [("sub", "regressed", run_of(14), [])]


def test_a_new_case_and_another_toolchain_have_no_past(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    night(store, 0, {"add": "exact"})
    assert night(store, 1, {"sub": "refused"}) == []
    assert night(store, 2, {"add": "refused"}, toolchain="qnn-2.50") == []
