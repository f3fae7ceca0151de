"""Sixty nights with noise and planted changes: every change is reported in time, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.history import trends
from qnnsweep.tasks.numerics.series import SERIES
from qnnsweep.tasks.numerics.trend import BAD
from qnnsweep.tasks.records.tables import CELL_COLUMNS
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.runs.synthetic_history import (
    Change,
    Row,
    by,
    cell_row,
    drifting,
    operator_rows,
    run_of,
    times,
    write_night,
)

NIGHTS = 60
SDK = 18
DRIFT_DB, DRIFT_FROM = 0.12, 20
PLANTED = {
    "step": Change(
        cell="step", night=25, columns={"final_snr_db": by(-2.0)}, alarms=frozenset({"final_snr_db"}),
    ),
    "SDK change": Change(
        cell="sdk", night=SDK, columns={"final_snr_db": by(-2.5)}, alarms=frozenset({"final_snr_db"}),
        causes=("qnn v2.49.40 -> v2.50.1",),
    ),
    # 0.12 dB per night exceed the floor of 1 dB on the ninth night.
    "drift": Change(
        cell="drift", night=DRIFT_FROM, columns={"final_snr_db": drifting(-DRIFT_DB, 13)}, due=DRIFT_FROM + 8,
        alarms=frozenset({"final_snr_db"}),
    ),
    "spike": Change(
        cell="spike", night=30, nights=1, columns={"final_snr_db": by(-5.0)}, alarms=frozenset({"final_snr_db"}),
    ),
    "coverage loss": Change(
        cell="coverage", night=33, columns={"operators_compared": 11}, alarms=frozenset({"coverage"}),
    ),
    "latency +8 %": Change(
        cell="latency", night=40, columns={"latency_p50_ms": times(1.08)}, alarms=frozenset({"latency_p50_ms"}),
    ),
    "device swap": Change(
        cell="farmed", night=36, columns={"device": "phone-b", "latency_p50_ms": times(1.15)},
        alarms=frozenset({"latency_p50_ms"}), causes=("device phone-a -> phone-b",),
    ),
    "model change": Change(
        cell="model", night=28, columns={"model_digest": "m2", "final_snr_db": by(-3.0)},
        alarms=frozenset({"final_snr_db"}), causes=("model",),
    ),
    "scheme change": Change(
        cell="scheme", night=44, columns={"scheme_digest": "s2", "final_cosine": by(-0.01)},
        alarms=frozenset({"final_cosine"}), causes=("scheme",),
    ),
    "size growth": Change(
        cell="size", night=22, columns={"request_digest": "r2", "pte_bytes": 72_000},
        alarms=frozenset({"pte_bytes"}), causes=("configuration",),
    ),
    "delegation loss": Change(
        cell="delegation", night=48, columns={"delegated_nodes": 14, "non_delegated_nodes": 4},
        alarms=frozenset({"delegated_nodes", "non_delegated_nodes"}),
    ),
    "top-1 loss": Change(
        cell="top1", night=50, columns={"soc_digest": "c2", "top1_agreement": 0.93, "outcome": "out_of_tolerance"},
        alarms=frozenset({"top1_agreement", "passed"}), causes=("soc",),
    ),
    "one operator": Change(
        cell="operator", night=45, columns={"final_snr_db": by(-3.0)}, operators={"relu": 8.0},
        alarms=frozenset({"final_snr_db", "relu snr_db", "relu introduced_snr_db"}),
    ),
}  # fmt: skip
LOST = Change(
    cell="step", night=12, nights=1, alarms=frozenset(),
    columns=dict.fromkeys(("final_snr_db", "final_cosine", "latency_p50_ms", "top1_agreement", "accuracy"))
    | {"outcome": "infrastructure"},
)  # fmt: skip
"""A night on which the device was lost: missing values are not a regression."""
SWAPPED = Change(cell="farmed", night=0, columns={"device": "phone-a", "farm": "shelf"}, alarms=frozenset())
NEW_SDK = [
    Change(cell=change.cell, night=SDK, columns={"qnn": "v2.50.1"}, alarms=frozenset()) for change in PLANTED.values()
]
"""The SDK changes for all cells of the machine, also for those that it does not affect."""
CHANGES = [SWAPPED, *PLANTED.values(), LOST, *NEW_SDK]


def history(root: Path, seed: int, changes: list[Change]) -> list[list[Row]]:
    """Write the history and return the rows of `trends` of each night."""
    store, noise = Store(root), np.random.default_rng(seed)
    models = list(dict.fromkeys(change.cell for change in changes))
    rows: list[list[Row]] = []
    for night in range(NIGHTS):
        cells = [cell_row(model, night, changes, noise) for model in models]
        operators = [row for cell in cells for row in operator_rows(cell, night, changes, noise)]
        rows.append(write_night(store, cells, operators, TrendConfig()))
    return rows


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> list[list[Row]]:
    return history(tmp_path_factory.mktemp("artifacts"), 1, CHANGES)


def series_of(row: Row) -> str:
    return " ".join(filter(None, (row["operator"], row["series"])))


def alarms(nights: list[list[Row]]) -> dict[tuple[str, str], list[tuple[int, Row]]]:
    """Return the rows of all regressions and their nights, by cell and series."""
    alarms: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for night, rows in enumerate(nights):
        for row in rows:
            if row["verdict"] == "regressed":
                alarms.setdefault((row["model"], series_of(row)), []).append((night, row))
    return alarms


def verdicts(nights: list[list[Row]], model: str, series: str) -> list[str]:
    return [row["verdict"] for rows in nights for row in rows if (row["model"], series_of(row)) == (model, series)]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_reported_with_its_cause_on_its_night_or_the_next(
    nights: list[list[Row]], name: str
) -> None:
    change = PLANTED[name]
    for series in change.alarms:
        night, row = alarms(nights)[change.cell, series][0]
        assert night - change.expected in (0, 1)
        # A drift has no first night; its regression began on one of its nights.
        assert run_of(change.night) <= row["first_bad_run"] <= run_of(night if change.due else change.night)
        assert row["changed"] == list(change.causes)


def test_there_is_at_most_one_false_alarm_in_sixty_nights(nights: list[list[Row]]) -> None:
    planted = {(change.cell, series): change for change in PLANTED.values() for series in change.alarms}
    false = [
        (night, series)
        for series, regressions in alarms(nights).items()
        for night, _ in regressions
        if series not in planted or night - planted[series].expected not in (0, 1)
    ]
    assert len(false) <= 1, false


def test_every_cell_has_a_row_for_every_series_every_night(nights: list[list[Row]]) -> None:
    for rows in nights:
        assert {row["model"] for row in rows} == {change.cell for change in CHANGES}
        assert len([row for row in rows if row["operator"] is None]) == len(SERIES) * len(PLANTED)


def test_a_step_is_still_bad_since_its_first_night_until_it_is_the_baseline(nights: list[list[Row]]) -> None:
    rows = [row for night in nights for row in night if (row["model"], row["series"]) == ("sdk", "final_snr_db")]
    after = rows[SDK + 1 :]
    # Thirty nights of the new level make it the baseline.
    assert {row["verdict"] for row in after[:29]} == {"still_bad"}
    assert {row["first_bad_run"] for row in after[:29]} == {run_of(SDK)}
    assert {tuple(row["changed"]) for row in after[:29]} == {("qnn v2.49.40 -> v2.50.1",)}
    assert {row["verdict"] for row in after[29:]} == {"steady"}


def test_a_spike_is_reported_once_and_does_not_move_the_baseline(nights: list[list[Row]]) -> None:
    rows = [row for night in nights for row in night if (row["model"], row["series"]) == ("spike", "final_snr_db")]
    assert [row["verdict"] for row in rows[29:]] == ["steady", "regressed", *["steady"] * 29]
    assert abs(rows[31]["level"] - rows[30]["level"]) < 0.2


def test_the_first_night_is_new_and_a_night_without_a_device_is_undefined(nights: list[list[Row]]) -> None:
    for series in ("final_snr_db", "latency_p50_ms", "passed"):
        assert verdicts(nights, "step", series)[:4] == ["new", "no_baseline", "no_baseline", "steady"]
    assert verdicts(nights, "step", "final_snr_db")[12:14] == ["undefined", "steady"]
    assert verdicts(nights, "step", "passed")[12] == "undefined"


def test_a_row_of_trends_has_the_last_sixty_nights(nights: list[list[Row]]) -> None:
    (row,) = (row for row in nights[-1] if (row["model"], row["series"]) == ("step", "final_snr_db"))
    assert row["runs"] == [run_of(night) for night in range(NIGHTS)]
    assert row["values"][12] is None
    assert row["values"][-1] == row["value"]
    assert (row["unit"], row["floor"]) == ("dB", 1.0)


def write_history(root: Path, nights: list[dict[str, Any]], config: TrendConfig | None = None) -> list[list[Row]]:
    """Write a history of one cell without noise, with these columns changed each night; return its rows of trends."""
    store, rows = Store(root), []
    for night, columns in enumerate(nights):
        cell = dict.fromkeys(tables.schema_of("cells").names) | cell_row("toy", night, [], np.random.default_rng(0))
        rows.append(write_night(store, [cell | columns], [], config or TrendConfig()))
    return rows


def test_a_night_out_of_tolerance_is_not_part_of_a_baseline(tmp_path: Path) -> None:
    bad = {"outcome": "out_of_tolerance", "final_snr_db": 3.0}
    rows = write_history(tmp_path, [bad] * 3 + [{}] * 4 + [bad] * 40)
    assert verdicts(rows, "toy", "final_snr_db") == [
        "new", *["no_baseline"] * 5, "steady", "regressed", *["still_bad"] * 39,
    ]  # fmt: skip
    assert verdicts(rows, "toy", "passed")[5:9] == ["no_baseline", "steady", "regressed", "still_bad"]


def test_a_simulator_is_judged_exactly_and_each_return_of_a_regression_is_a_regression(tmp_path: Path) -> None:
    good, bad = ({"timed_on": "simulator", "final_snr_db": snr, "device": "local"} for snr in (30.0, 20.0))
    rows = write_history(tmp_path / "simulator", [good, bad, good, bad, bad])
    exact = ["new", "regressed", "steady", "regressed", "still_bad"]
    assert verdicts(rows, "toy", "final_snr_db") == exact
    lost = {"timed_on": "device", "final_snr_db": 20.0, "delegated_nodes": 16}
    rows = write_history(tmp_path / "phone", [{}, lost, {}, lost])
    assert verdicts(rows, "toy", "final_snr_db")[:3] == ["new", "no_baseline", "no_baseline"]
    assert verdicts(rows, "toy", "delegated_nodes") == exact[:4]  # by the compiler


@pytest.mark.parametrize(("timed_on", "last"), [("device", "regressed"), ("simulator", "undefined")])
def test_the_latency_of_a_simulator_is_in_the_table_and_is_not_judged(tmp_path: Path, timed_on: str, last: str) -> None:
    columns = [{"timed_on": timed_on, "latency_p50_ms": ms} for ms in (*[2.0] * 8, 3.0)]
    rows = [row for row in write_history(tmp_path, columns)[-1] if row["series"] == "latency_p50_ms"]
    assert [(row["verdict"], row["value"], row["values"][-2:]) for row in rows] == [(last, 3.0, [2.0, 3.0])]


def test_a_phone_that_takes_the_place_of_another_starts_new_series_and_a_farm_does_not(tmp_path: Path) -> None:
    ids = [None, "a", "a", "b", "b"]
    rows = write_history(tmp_path / "phone", [{"device_id": name} for name in ids])
    expected = ["new", "no_baseline", "no_baseline", "new", "no_baseline"]
    assert verdicts(rows, "toy", "final_snr_db") == expected
    listed = [row["values"] for night in rows for row in night if row["series"] == "final_snr_db"]
    assert [len(values) for values in listed] == [1, 2, 3, 1, 2]
    rows = write_history(tmp_path / "farm", [{"farm": "f", "device_id": name} for name in "ab"])
    assert verdicts(rows, "toy", "final_snr_db") == ["new", "no_baseline"]


def test_a_cell_is_identified_by_its_farm_or_else_by_its_device(tmp_path: Path) -> None:
    rows = write_history(tmp_path, [{"device": "a"}, {"device": "b"}, {"farm": "f"}, {"farm": "f", "device": "b"}])
    assert verdicts(rows, "toy", "final_snr_db") == ["new", "new", "new", "no_baseline"]


def test_a_recompare_is_not_a_night(tmp_path: Path) -> None:
    rows = write_history(tmp_path, [{"verb": "recompare"}, {}, {"verb": "recompare"}, {}])
    (row,) = (row for row in rows[-1] if row["series"] == "final_snr_db")
    assert row["runs"] == [run_of(1), run_of(3)]


def test_runs_of_other_cells_do_not_count_as_nights(tmp_path: Path) -> None:
    config = TrendConfig(nights=2)
    rows = write_history(tmp_path, [{}, *[{"soc": "SM8750"}] * 10, {}], config)
    (row,) = (row for row in rows[-1] if row["series"] == "final_snr_db")
    assert (row["runs"], row["verdict"]) == ([run_of(0), run_of(11)], "no_baseline")


def test_a_changed_input_is_named_by_its_keys_with_both_values(tmp_path: Path) -> None:
    common = ["model.name=toy", "model.inputs[0].name=x", "measure.iterations=10", "scheme.observer=MinMaxObserver"]
    good, bad = [*common, "model.calibration.count=64"], [*common, "model.calibration.count=1", "model.classifier=True"]
    changed = {"final_snr_db": 20.0, "model_digest": "other", "scheme_digest": "of another file"}
    rows = write_history(tmp_path, [{"settings": good}] * 4 + [{"settings": bad} | changed])
    (row,) = (row for row in rows[-1] if row["series"] == "final_snr_db")
    assert (row["verdict"], row["changed"]) == (
        "regressed",
        ["model.calibration.count 64 -> 1", "model.classifier null -> True", "scheme (its code or files)"],
    )


def test_a_run_of_an_earlier_version_counts_but_its_digests_are_unknown(tmp_path: Path) -> None:
    old = dict.fromkeys(("verb", "model_digest", "scheme_digest", "soc_digest", "request_digest"))
    rows = write_history(tmp_path, [old, old, old, {"final_snr_db": 20.0, "torch": "2.14.0"}])
    (row,) = (row for row in rows[-1] if row["series"] == "final_snr_db")
    assert (row["verdict"], row["changed"]) == ("regressed", ["torch 2.13.0 -> 2.14.0"])


def write_operators(root: Path, noise_db: float) -> Callable[[float, float], list[Row]]:
    """Write twenty nights of a cell with 300 operators. Return a function that returns the bad rows of a next night.

    Its parameters are the losses of the cell and of its first operator, in dB.
    """
    store, noise = Store(root), np.random.default_rng(0)

    def rows_of(night: int, operator_loss: float) -> tuple[Row, list[Row]]:
        cell = cell_row("toy", night, [], noise)
        rows = [
            dict.fromkeys(tables.schema_of("operators").names)
            | {name: cell[name] for name in CELL_COLUMNS}
            | {"operator_index": index, "operator": f"op{index}", "reference": "edge", "sample": 0}
            | {"status": "compared", "snr_db": gap - 5, "introduced_snr_db": gap}
            for index in range(300)
            for gap in [40.0 - operator_loss * (index == 0) + float(noise.normal(0, noise_db))]
        ]
        return cell, rows

    for night in range(20):
        cell, operators = rows_of(night, 0.0)
        for table, rows in (("operators", operators), ("cells", [cell])):
            tables.write(store, run_of(night), table, rows)

    def bad(cell_loss: float, operator_loss: float) -> list[Row]:
        cell, operators = rows_of(20, operator_loss)
        cell["final_snr_db"] -= cell_loss
        return [row for row in trends(store, run_of(20), [cell], operators, TrendConfig()) if row["verdict"] in BAD]

    return bad


def test_operators_are_reported_only_below_a_cell_that_is_worse(tmp_path: Path) -> None:
    bad = write_operators(tmp_path, noise_db=0.3)
    assert bad(0.0, 20.0) == []
    below = bad(5.0, 20.0)
    assert [series_of(row) for row in below] == ["final_snr_db", "op0 snr_db", "op0 introduced_snr_db"]
    assert {row["first_bad_run"] for row in below} == {run_of(20)}
    assert below[1]["level"] == pytest.approx(35.0, abs=0.3)


def test_the_noise_of_many_operators_below_a_worse_cell_is_not_reported(tmp_path: Path) -> None:
    bad = write_operators(tmp_path, noise_db=2.0)
    assert [series_of(row) for row in bad(5.0, 0.0)] == ["final_snr_db"]
    assert [series_of(row) for row in bad(5.0, 30.0)] == ["final_snr_db", "op0 snr_db", "op0 introduced_snr_db"]


def step_rows(cell: Row, night: int, first_wrong: int | None) -> list[Row]:
    """Return the rows of a sequence of five steps. The tokens differ from step `first_wrong` on."""
    rows: list[Row] = []
    for step in range(5):
        wrong, after = step == first_wrong, first_wrong is not None and step > first_wrong
        row = dict.fromkeys(tables.schema_of("steps").names) | {name: cell[name] for name in CELL_COLUMNS}
        row |= {"run_id": run_of(night), "sample": 0, "sample_name": "a", "method": "decode", "step": step}
        row |= {"token": 9 if wrong or after else step, "token_reference": step}
        row |= {"introduced_snr_db": 20.0 if wrong else 50.0, "origin": "diverged" if after else "introduced"}
        rows.append(row)
    return rows


def test_the_step_that_got_worse_and_the_first_token_that_differs_are_reported_until_they_are_right(
    tmp_path: Path,
) -> None:
    store, noise, bad = Store(tmp_path), np.random.default_rng(0), list[list[tuple[Any, ...]]]()
    for night, first_wrong in enumerate([None, None, None, 2, 2, None]):
        cell = cell_row("toy", night, [], noise) | {"top1_agreement": 1.0 if first_wrong is None else 0.0}
        steps = step_rows(cell, night, first_wrong)
        rows = trends(store, run_of(night), [cell], [], TrendConfig(), steps)
        for table, contents in (("cells", [cell]), ("steps", steps), ("trends", rows)):
            tables.write(store, run_of(night), table, contents)
        columns = ("step", "series", "verdict", "value", "level")
        bad.append([tuple(row[name] for name in columns) for row in rows if row["verdict"] in BAD])
    name = 'step 2 (decode) of "a"'
    assert bad == [
        *([], [], []),
        *(
            [
                (None, "top1_agreement", verdict, 0.0, 1.0),
                (name, "same_token", verdict, 0.0, 1.0),
                (name, "introduced_snr_db", verdict, 20.0, 50.0),
            ]
            for verdict in ("regressed", "still_bad")
        ),
        [],
    ]


def test_an_operator_of_a_worse_cell_stays_bad_as_long_as_the_cell(nights: list[list[Row]]) -> None:
    bad = ["regressed", *["still_bad"] * 14]
    assert verdicts(nights, "operator", "final_snr_db")[-16:] == ["steady", *bad]
    # An operator has a row only on nights on which it is worse.
    assert verdicts(nights, "operator", "relu snr_db") == bad
    assert verdicts(nights, "operator", "relu introduced_snr_db") == bad
