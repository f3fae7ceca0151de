"""The rows of a run are written, whatever is wrong with the tables of earlier runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request, TrendConfig
from qnnsweep.flows.forecasts import costs
from qnnsweep.flows.runs import results
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records.tables import TABLES, Row
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.supervisor import CallCost
from tests.program import Program
from tests.sample_records import TOOLCHAIN, passed_cell
from tests.sample_tables import RUN

NIGHTS = [f"2026112{day}T020000Z-aaaa" for day in range(6)]
DAMAGES = {
    "cut": lambda data: data[:1000],
    "empty": lambda _: b"",
    "a flipped bit": lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:],
    "another program's": lambda _: b"run_id\tmodel\n",
}


@pytest.fixture(scope="module")
def request_8a8w() -> Request:
    return load(["tolerance=none"]).cells[0].request


def write_night(store: Store, number: int, request: Request, snr_db: float) -> results.SweepResult:
    """Write a run as a sweep does. `snr_db`: what both the cell's outputs and its operators have."""
    cost = CallCost(stage="export", subject=("digits_cnn",), seconds=2.0, peak_bytes=1 << 30)
    contents = rows(NIGHTS[number], [passed_cell(request)], TOOLCHAIN, [cost])
    cells = [row | {"final_snr_db": snr_db} for row in contents["cells"]]
    operators = [row | {"snr_db": row["snr_db"] and snr_db} for row in contents["operators"]]
    contents |= {"cells": cells, "operators": operators}
    return results.write(replace(RUN, run_id=NIGHTS[number]), contents, store, TrendConfig())


def file_of(store: Store, table: str, number: int) -> Path:
    return store.root / "tables" / table / f"run={NIGHTS[number]}" / "part.parquet"


def rows_of(store: Store, number: int) -> dict[str, list[Row]]:
    return {table: tables.rows(store, table, NIGHTS[number]) for table in TABLES}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages, _ = [record.getMessage() for record in caplog.records], caplog.clear()
    return messages


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", ["cells", "operators", "trends"])
def test_a_run_has_all_rows_although_a_table_of_an_earlier_run_is_damaged(
    request_8a8w: Request, tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, damage: str
) -> None:
    store, without = Store(tmp_path / "damaged"), Store(tmp_path / "without")
    for place in (store, without):
        for number in range(5):
            write_night(place, number, request_8a8w, 40.0)
    damaged = file_of(store, table, 1)
    damaged.write_bytes(DAMAGES[damage](damaged.read_bytes()))
    file_of(without, table, 1).unlink()
    assert lines(caplog) == []

    result = write_night(store, 5, request_8a8w, 20.0)
    (line,) = lines(caplog)
    assert line.startswith(f"trends: a night is left out: {damaged} ")
    write_night(without, 5, request_8a8w, 20.0)
    assert rows_of(store, 5) == rows_of(without, 5)
    assert (len(result.cells), result.page.is_file()) == (1, True)
    worse = [row for row in result.trends if row["verdict"] == "regressed"]
    assert {row["operator"] for row in worse} > {None}
    assert (NIGHTS[1] in result.trends[0]["runs"]) == (table != "cells")


def test_the_costs_of_a_run_with_a_damaged_table_are_left_out(
    request_8a8w: Request, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for number in range(2):
        write_night(store, number, request_8a8w, 40.0)
    before = costs.estimates(store)
    damaged = file_of(store, "work", 1)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert costs.estimates(store) == before != {}
    (line,) = lines(caplog)
    assert line.startswith(f"expected costs: a run is left out: {damaged} is damaged")


def test_a_run_that_cannot_be_compared_is_complete_all_the_same(request_8a8w: Request, tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_night(store, 0, request_8a8w, 40.0)
    (store.root / "tables" / "trends" / f"run={NIGHTS[1]}").touch()  # a file where a folder belongs
    with pytest.raises(Exception, match="trends"):
        write_night(store, 1, request_8a8w, 40.0)
    assert tables.runs(store) == NIGHTS[:2]
    assert len(tables.rows(store, "cells", NIGHTS[1])) == 1
    assert tables.rows(store, "trends", NIGHTS[1]) == []


def test_a_run_with_a_damaged_table_is_named_and_the_other_runs_have_reports_and_differences(
    request_8a8w: Request, tmp_path: Path, program: Program
) -> None:
    store = Store(tmp_path)
    for number in range(4):
        write_night(store, number, request_8a8w, 40.0)
    damaged = file_of(store, "cells", 1)
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(EvidenceError, match=f"^{damaged} "):
        results.rerender(store, NIGHTS[1])
    for command in (("report", NIGHTS[1]), ("diff", NIGHTS[0], NIGHTS[1])):
        ran = program.run(*command, f"--artifacts={tmp_path}")
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
        assert ran.stderr.startswith(f"qnnsweep: {damaged} ")
    for command in (("report", NIGHTS[2]), ("diff", NIGHTS[0], NIGHTS[3])):
        ran = program.run(*command, f"--artifacts={tmp_path}")
        assert (ran.returncode, ran.stderr) == (0, "")
    noise = file_of(store, "trends", 3)
    noise.write_bytes(b"")
    ran = program.run("diff", NIGHTS[0], NIGHTS[3], "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, json.loads(ran.stdout)["regressions"]) == (0, 0)
    assert ran.stderr.startswith(f"diff: the noise of earlier nights is left out: {noise} cannot be read")
    assert ran.stderr.count("\n") == 1


def test_the_history_leaves_out_a_night_that_cannot_be_read_and_says_so(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    for number in range(2):
        write_night(Store(tmp_path), number, request_8a8w, 40.0)
    file_of(Store(tmp_path), "cells", 0).write_bytes(b"")
    ran = program.run("report", "--site=pages", f"--artifacts={tmp_path}")
    index = (program.folder / "pages" / "index.html").read_text()
    assert (ran.returncode, [night in index for night in NIGHTS[:2]]) == (0, [False, True])
    assert ran.stderr.startswith("left out: ")
