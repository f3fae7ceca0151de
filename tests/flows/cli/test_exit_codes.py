"""The exit code of a run says who must act: the user, this machine, or its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.flows.cli.run import _exit_code
from qnnsweep.flows.runs.results import SweepResult
from tests.sample_tables import RUN

DAMAGED, LOST = ("infrastructure", "EvidenceError"), ("infrastructure", "DeviceError")


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        ([("passed", None), ("impossible", None)], 0),
        ([("passed", None), DAMAGED], 3),
        ([("infrastructure", "MachineFault")], 3),
        ([("infrastructure", "EnvironmentUnusable")], 3),
        ([DAMAGED, LOST], 4),
        ([("infrastructure", "DeadlinePassed")], 4),
        ([LOST, ("failed", "ToolchainError")], 1),
        ([DAMAGED, ("out_of_tolerance", None)], 1),
    ],
)
def test_a_damaged_file_is_no_fault_of_a_device(cells: list[tuple[str, str | None]], code: int) -> None:
    rows = [{"outcome": outcome, "error_type": error} for outcome, error in cells]
    assert _exit_code(SweepResult(run=RUN, cells=rows, page=Path("report.html"), trends=[])) == code
