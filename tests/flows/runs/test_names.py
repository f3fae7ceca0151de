"""The run that a command about a cell reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.flows.runs.names import find_run_of_cell
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.sample_tables import cell, table

RUNS = ("20260101T220000Z-aaaa", "20260102T220000Z-bbbb", "20260103T220000Z-cccc")


def test_a_command_about_a_cell_reads_the_latest_run_that_has_the_cell(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    store.check_writable()
    for run, model in zip(RUNS, ("mine", "mine", "other"), strict=True):
        rows = [cell(model, "8a8w", "SM8650")]
        tables.write(store, run, "cells", [row | {"run_id": run} for row in table("cells", rows)])
    for name, run in ((None, RUNS[1]), (RUNS[0], RUNS[0]), ("previous", RUNS[1])):
        found, row = find_run_of_cell(store, name, "mine/8a8w")
        assert (found, row["model"]) == (run, "mine")
    for name, wanted in ((None, "absent"), ("latest", "mine")):
        with pytest.raises(RequestError, match=f"CELL={wanted}: no cell of run {RUNS[2]}; write one of other/8a8w"):
            find_run_of_cell(store, name, wanted)
