"""The summary of a run in terminals of several widths."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qnnsweep.tasks.report.terminal import summary_diagnoses, summary_table
from tests.sample_tables import RUN, cell, measured, table

GOLDENS = Path(__file__).parents[1] / "goldens" / "terminal"
WIDTHS = (60, 80, 120)
DIAGNOSIS = (
    "30.5 dB (the lowest of 100 outputs), of which 46 % is the grid of the linear layer head; 14 % is what the device "
    "computes differently in the linear layer head."
)


def cells() -> list[dict[str, Any]]:
    passed = measured(random.Random(1), 30.5) | {"lower_s": 57.04, "pte_bytes": 5_242_880, "diagnosis": DIAGNOSIS}
    earlier = passed | {"measured_run": "20260101T000000Z-0123456789ab"}
    outside = passed | {"reason": "final SNR 11.9 dB is below 20.0 dB"}
    error = {"stage": "lower", "error_type": "ToolchainError", "error": "lower failed: SIGABRT\nmore"}
    return table(
        "cells",
        [
            cell("digits_cnn", "8a8w", "SM8550", **passed),
            cell("efficientnet_lite0", "16a8w", "SM8650", **earlier),
            cell("efficientnet_lite0", "16a4w_block", "SM8650", **outside) | {"outcome": "out_of_tolerance"},
            cell("a_model_with_a_name_of_forty_four_characters", "fp16", "SM8750", outcome="failed", **error),
        ],
    )


def printed(width: int) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width)
    console.print(summary_table(RUN, cells()))
    console.print(summary_diagnoses(cells()))
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_summary_is_the_golden_of_its_width(width: int) -> None:
    golden = (GOLDENS / f"summary_{width}.txt").read_text()
    assert printed(width) == golden, "run `python -m tests.report.test_terminal`"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_cell_has_a_single_line_with_its_soc_and_its_outcome(width: int) -> None:
    lines = [line for line in printed(width).splitlines() if any(mark in line for mark in ("✓", "≠", "✗"))]
    assert [[word for word in ("SM8550", "SM8650", "SM8750") if word in line] for line in lines] == [
        ["SM8550"], ["SM8650"], ["SM8650"], ["SM8750"],
    ]  # fmt: skip
    assert [line for line in printed(width).splitlines() if len(line) > width] == []


if __name__ == "__main__":
    for columns in WIDTHS:
        (GOLDENS / f"summary_{columns}.txt").write_text(printed(columns))
