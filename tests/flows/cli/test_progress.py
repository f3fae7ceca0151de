"""The progress of a sweep in terminals of several sizes."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from qnnsweep.conf.load import load
from qnnsweep.conf.names import SHOWN_STAGES
from qnnsweep.conf.plan import PlannedCell
from qnnsweep.flows.cli.progress import ProgressTable
from qnnsweep.flows.forecasts.costs import work_label

GOLDENS = Path(__file__).parents[2] / "goldens" / "terminal"
WIDTHS = (60, 80, 120)
STATES = (
    ("reused",) * 8 + ("done",),
    ("done", "done", "failed"),
    ("done", "done", "done", "done", "done", "running"),
    ("done", "queued"),
    (),
)
"""The states of the first stages of the cells that are not like the last."""


@cache
def only_cell() -> PlannedCell:
    return load(["model=digits_cnn", "soc=SM8650", "scheme=8a8w"]).cells[0]


def cell_of(model: str) -> PlannedCell:
    cell = only_cell()
    return replace(cell, request=replace(cell.request, model=replace(cell.request.model, name=model)))


def played(cells: int = 5) -> ProgressTable:
    """Return the table of a sweep of so many models, twelve seconds after its last event."""
    now = [0.0]
    names = ["efficientnet_lite0", *(f"m{number}" for number in range(1, cells))]
    planned = [cell_of(name) for name in names]
    table = ProgressTable(planned, clock=lambda: now[0])
    for cell, states in zip(planned, (*STATES[:4], *[STATES[4]] * (cells - 4)), strict=True):
        for stage, state in zip(SHOWN_STAGES, states, strict=False):
            table.update(stage, work_label(stage, cell.request), state)
    now[0] = 12.0
    return table


def printed(width: int, *, height: int = 24, cells: int = 5) -> str:
    written = io.StringIO()
    Console(file=written, width=width, height=height).print(played(cells), end="")
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_progress_is_the_golden_of_its_width(width: int) -> None:
    golden = (GOLDENS / f"progress_{width}.txt").read_text()
    assert printed(width) == golden, "run `python -m tests.flows.cli.test_progress`"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cells", [9, 60])
def test_the_progress_line_is_the_last_of_the_screen_whatever_the_number_of_cells(width: int, cells: int) -> None:
    lines = printed(width, cells=cells).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith(f" 2 of {cells} cells, 1 running, 1 queued, ")
    assert sum("m3 " in line for line in lines) == sum("m2 " in line for line in lines) == 1


if __name__ == "__main__":
    for columns in WIDTHS:
        (GOLDENS / f"progress_{columns}.txt").write_text(printed(columns))
