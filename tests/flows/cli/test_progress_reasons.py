"""Why a stage has failed is shown when it fails: in one line of a log file, or above the live table."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from qnnsweep.flows.cells.graph import REASON
from qnnsweep.flows.cli.progress import show_progress

LABEL = "lower net · 8a8w · SM8650: lower failed: RuntimeError: `y[:, 0] = 1` (net.py:8) is [one] constant\nmore\nlog"
LINE = "✗ lower net · 8a8w · SM8650: lower failed: RuntimeError: `y[:, 0] = 1` (net.py:8) is [one] constant"


@pytest.mark.parametrize("is_screen", [False, True])
def test_the_reason_is_one_line_whatever_the_width(is_screen: bool) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_screen, width=60, color_system=None)
    with show_progress([], console) as display:
        display.update(REASON, LABEL, "failed")
    lines = written.getvalue().splitlines()
    assert [line for line in lines if LINE in line] == [LINE] if not is_screen else LINE in written.getvalue()
    assert "more" not in written.getvalue()
