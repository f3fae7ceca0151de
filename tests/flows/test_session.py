"""The ids of runs: they sort by start time, and no two runs of one second share an id."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from qnnsweep.flows.session import new_run_id

RUNS = 5000


def test_ids_of_runs_that_start_in_the_same_second_differ_and_sort_by_start_time() -> None:
    ids = [new_run_id(datetime.now(UTC)) for _ in range(RUNS)]
    assert len(set(ids)) == RUNS
    assert [run for run in ids if not re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{12}", run)] == []
    seconds = [run.partition("-")[0] for run in ids]
    assert seconds == sorted(seconds)
    assert 20 * len(set(seconds)) < RUNS, "too few runs per second: 16 random bits would pass this test"
