"""Tests the summaries of a run for the terminal and for Prefect."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from qnnsweep.tasks.report.format import with_places
from qnnsweep.tasks.report.page import summary_markdown, summary_rows
from qnnsweep.tasks.report.terminal import Diagnoses, summary_diagnoses, summary_table
from tests.sample_tables import RUN, cell, measured, nightly, table


def test_the_terminal_table_shows_rounded_numbers_and_dashes_for_null() -> None:
    rows = [
        cell(
            "[red]m",
            "8a8w",
            "SM8650",
            **measured(random.Random(1), 23.449) | {"lower_s": 57.04, "pte_bytes": 5_242_880},
        ),
        cell("m", "fp16", "SM8650", outcome="failed", stage="lower", error_type="ToolchainError", error="died\nlater"),
    ]
    written = io.StringIO()
    Console(file=written, width=200).print(summary_table(RUN, table("cells", rows)))
    lines = [re.split(r"\s{2,}", line.strip()) for line in written.getvalue().splitlines()]
    body = [line for line in lines if line[0] in {"[red]m", "m", "ToolchainError: died"}]
    assert body == [
        ["[red]m", "8a8w", "SM8650", "✓ passed", "23.4", "100.0", "5,120", "71/80", "148/2", "57.0"],
        ["m", "fp16", "SM8650", "✗ failed", *"––––––"],
        ["ToolchainError: died"],
    ]


def diagnosed(count: int) -> list[dict[str, Any]]:
    """Return passed cells with one diagnosis each, and then a cell out of tolerance and a failed cell."""
    facts = measured(random.Random(1), 30.0)
    passed = [cell(f"m{number}", "s", "c", **facts | {"diagnosis": f"D{number}."}) for number in range(count)]
    bad = cell("bad", "s", "c", **facts | {"diagnosis": "Why."}) | {"outcome": "out_of_tolerance", "reason": "too low"}
    failed = cell("failed", "s", "c", outcome="failed", error="died", diagnosis="failed in lower: died")
    return table("cells", [*passed, bad, failed])


def printed(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line per diagnosis: the names of its cells, its text and its command."""
    written = io.StringIO()
    Console(file=written, width=100).print(summary_diagnoses(rows), crop=False)
    return [" ".join(text.split()) for text in re.split(r"\n(?! )", written.getvalue().rstrip())]


def test_the_terminal_shows_every_diagnosis_of_a_few_compared_cells() -> None:
    assert printed(diagnosed(2)) == ["m0 s c D0.", "m1 s c D1.", "bad s c Why."]


def test_the_terminal_shows_of_many_cells_only_the_diagnoses_of_those_that_did_not_pass() -> None:
    assert printed(diagnosed(8)) == ["bad s c Why."]


def test_cells_with_the_same_diagnosis_are_one_line_of_the_terminal() -> None:
    facts = measured(random.Random(1), 30.0) | {"diagnosis": "D."}
    assert printed([cell("m", "8a8w", soc, **facts) for soc in ("SM8550", "SM8650")]) == ["m 8a8w SM8550, SM8650 D."]


def test_prefect_has_the_diagnoses_after_the_reasons_and_both_beside_the_outcome() -> None:
    lines = [line.split(" | ") for line in summary_markdown(RUN, diagnosed(1)).splitlines() if line[:2] == "| "]
    assert [line[3:5] for line in (lines[0], *lines[2:])] == [
        ["outcome", "note"], ["✗ failed", "died"], ["≠ out of tolerance", "too low — Why."], ["✓ passed", "D0."],
    ]  # fmt: skip
    assert [row["note"] for row in summary_rows(diagnosed(1))] == ["D0.", "too low — Why.", "died"]


def test_markdown_has_the_worst_cells_first() -> None:
    lines = summary_markdown(RUN, table("cells", nightly())).splitlines()
    body = [line.split(" | ") for line in lines if line.startswith("| ")][2:]
    outcomes = ["✗ failed"] * 2 + ["! infrastructure"] + ["≠ out of tolerance"] * 3 + ["∅ impossible"] * 3
    assert [row[3] for row in body] == outcomes + ["✓ passed"] * 18
    assert lines[2].startswith("27 cells: 2 failed, 1 infrastructure, 3 out of tolerance, 3 impossible, 18 passed.")
    assert "Report: artifacts/runs/20261121T0230Z-4f1c/report.html" in lines[6]


def test_the_command_of_a_diagnosis_has_the_places_of_the_run_s_command_line() -> None:
    repair, repro = "D. Next: `qnnsweep repair model=m` (a change).", "D. Next: `qnnsweep repro m/8a8w/SM8650`."
    cells = [{"diagnosis": diagnosis} for diagnosis in (repair, repro, None)]
    command = ("qnnsweep", "run", "--config-dir=my nets", "--config-dir=/more", "model=m", "artifacts='/my nights'")
    run = replace(RUN, command=command, tables="/my nights/tables")
    folders = "'--config-dir=my nets' --config-dir=/more"
    assert [cell["diagnosis"] for cell in with_places(cells, run)] == [
        f"D. Next: `qnnsweep repair {folders} '--artifacts=/my nights' model=m` (a change).",
        "D. Next: `qnnsweep repro '--artifacts=/my nights' m/8a8w/SM8650`.",
        None,
    ]
    assert with_places(cells, replace(RUN, command=(*command[:2], "artifacts=artifacts"))) == cells


def test_cells_whose_diagnoses_differ_in_the_soc_of_the_command_have_one_line() -> None:
    facts = measured(random.Random(1), 30.0)
    socs = ("SM8550", "SM8650")
    alike = [cell("m", "s", soc, **facts | {"diagnosis": f"D. Next: `qnnsweep repair soc={soc}`."}) for soc in socs]
    line = "m s SM8550, SM8650 D. Next: qnnsweep repair soc=SM8550,SM8650"
    assert printed(table("cells", alike)) == [line]
    shown = [cell("m", "s", soc, **facts | {"diagnosis": f"D. Next: `qnnsweep repro m/s/{soc}`."}) for soc in socs]
    assert printed(table("cells", shown)) == ["m s SM8550, SM8650 D. Next: qnnsweep repro m/s/SM8550"]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_command_has_a_line_of_its_own_however_long_it_is(width: int) -> None:
    command = f"qnnsweep repair {' '.join(f'model.arguments.key_{number}=1' for number in range(9))}"
    text = f"Bad. Next: `{command}` (a change). Or: `qnnsweep repro m/s/SM8650`. None of 5 changes helps."
    written = io.StringIO()
    Console(file=written, width=width).print(Diagnoses(diagnoses=[("m s SM8650", text)]), crop=False)
    assert written.getvalue().splitlines() == [
        "m s SM8650", "  Bad. Next:", f"  {command}", "  (a change). Or:", "  qnnsweep repro m/s/SM8650",
        "  None of 5 changes helps.",
    ]  # fmt: skip
