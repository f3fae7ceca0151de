"""`qnnsweep diff` on two sample runs, from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.devices import RunnerKind
from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request, TrendConfig
from qnnsweep.flows.runs.diff import Side, differences, number_change
from qnnsweep.flows.runs.history import trends
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.numerics.series import OPERATOR_SERIES, SERIES
from qnnsweep.tasks.records import Gap, Toolchain
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.program import Program
from tests.sample_records import CAPTURE, COMPARISON, LOWERED, SHIPPING, STEP, passed_cell, up_to_lower, with_method

OLD = Toolchain(python="3.11.7", torch="2.13.0", executorch="1.5.1", torchao="0.18.0", qnn="v2.49.40")
NEW = replace(OLD, qnn="v2.50.1")
RUNS = ("20261120T220000Z-aaaa", "20261121T220000Z-bbbb", "20261121T230000Z-cccc")
WORSE_OPERATORS = (
    replace(COMPARISON.operators[0], gap=replace(COMPARISON.operators[0].gap, snr_db=35.0)),
    COMPARISON.operators[1],
    replace(COMPARISON.operators[2], status="not_dumped", gap=Gap(), verdict="blind"),
    COMPARISON.operators[3],
)


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture(scope="module")
def request_8a8w() -> Request:
    return load(["tolerance=none"]).cells[0].request


def write(root: Path, run: str, cells: Sequence[CellResult], toolchain: Toolchain = OLD) -> None:
    store, contents = Store(root), rows(run, cells, toolchain)
    cells_and_operators = contents["cells"], contents["operators"]
    contents["trends"] = trends(store, run, *cells_and_operators, TrendConfig(), contents["steps"])
    for table, table_rows in contents.items():
        tables.write(store, run, table, table_rows)


def changes(difference: dict[str, Any]) -> list[tuple[Any, ...]]:
    (cell,) = difference["cells"]
    return [
        tuple(change[key] for key in ("operator", "what", "before", "after", "verdict")) for change in cell["changes"]
    ]


def test_two_equal_runs_have_no_difference(program: Program, request_8a8w: Request, tmp_path: Path) -> None:
    for run in RUNS[:2]:
        write(tmp_path, run, [passed_cell(request_8a8w)])
    ran = program.run("diff", "previous", "latest", "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (0, "")
    names = {
        "model": "digits_cnn",
        "scheme": "8a8w",
        "soc": "SM8650",
        "toolchain": "default",
        "backend": "qnn",
        "device": "local",
    }
    assert json.loads(ran.stdout) == {
        "schema": "qnnsweep/diff/1",
        "run_a": RUNS[0],
        "run_b": RUNS[1],
        "only_in_a": [],
        "only_in_b": [],
        "cells": [{"cell": names | {"farm": None}, "changed": [], "changes": []}],
        "regressions": 0,
        "lost": 0,
        "page": str(tmp_path / "runs" / RUNS[1] / f"diff-{RUNS[0]}.html"),
    }


def test_the_differences_are_written_as_a_page(program: Program, request_8a8w: Request, tmp_path: Path) -> None:
    worse = replace(COMPARISON, operators=WORSE_OPERATORS)
    write(tmp_path, RUNS[0], [passed_cell(request_8a8w)])
    write(tmp_path, RUNS[1], [passed_cell(request_8a8w, comparison=worse)], NEW)
    ran = program.run("diff", RUNS[0], RUNS[1], f"--artifacts={tmp_path}")
    page = Path(ran.stdout.splitlines()[-1].removeprefix("page "))
    text = re.sub("<.*?>", "|", page.read_text())
    assert page == tmp_path / "runs" / RUNS[1] / f"diff-{RUNS[0]}.html"
    assert "|1 of 1 common cell regressed|" in text
    assert "Changed inputs: qnn v2.49.40 -&gt; v2.50.1." in text
    assert "|conv snr_db||40 dB||35 dB||3 dB||regressed|" in text


def test_a_page_that_cannot_be_written_is_missing_and_the_differences_are_shown(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    for run in RUNS[:2]:
        write(tmp_path, run, [passed_cell(request_8a8w)])
    (tmp_path / "runs" / RUNS[1] / f"diff-{RUNS[0]}.html").mkdir(parents=True)
    ran = program.run("diff", RUNS[0], RUNS[1], f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == "no page: the folder of RUN_B is not writable"


def test_a_regression_is_shown_with_the_changed_inputs_and_the_exit_code_is_1(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    worse = replace(COMPARISON, operators=WORSE_OPERATORS, observer_effect_snr_db=59.0)
    lowered = replace(LOWERED, program=replace(LOWERED.program, size=1_100))
    other = replace(request_8a8w, scheme=replace(request_8a8w.scheme, observer="HistogramObserver"))
    write(tmp_path, RUNS[0], [passed_cell(request_8a8w)])
    write(tmp_path, RUNS[1], [passed_cell(other, comparison=worse, lowered=lowered)], NEW)
    ran = program.run("diff", "20261120", RUNS[1], "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (1, "")
    difference = json.loads(ran.stdout)
    assert difference["cells"][0]["changed"] == [
        "qnn v2.49.40 -> v2.50.1",
        "scheme.observer MinMaxObserver -> HistogramObserver",
    ]
    assert changes(difference) == [
        (None, "observer_effect_snr_db", 60.0, 59.0, "steady"),
        (None, "coverage", 0.5, 0.25, "regressed"),
        (None, "pte_bytes", 1000.0, 1100.0, "regressed"),
        ("conv", "status", "exact, masked", "masked, not_dumped", "regressed"),
        ("conv", "snr_db", 40.0, 35.0, "regressed"),
    ]
    assert difference["regressions"] == 1
    back = program.run("diff", RUNS[1], RUNS[0], "--json", f"--artifacts={tmp_path}")
    assert back.returncode == 0
    assert [change[-1] for change in changes(json.loads(back.stdout))] == [
        "steady", "improved", "improved", "changed", "improved",
    ]  # fmt: skip


SEQUENCE = tuple(
    replace(
        STEP, step=step, method="decode", method_sample=step, token=7 + step, token_reference=7 + step, text=f"t{step}",
        origin="introduced",
    )
    for step in range(4)
)  # fmt: skip
"""A sequence of four steps whose tokens are those of eager PyTorch."""
WRONG_FROM_1 = (
    SEQUENCE[0],
    replace(SEQUENCE[1], token=1, text=None, introduced_snr_db=12.0, state_introduced_snr_db=49.0),
    replace(SEQUENCE[2], token=2, origin="diverged", total_snr_db=None),
)
"""The same sequence without its last step. A token is wrong in step 1, and the next token is another one for that."""


def test_the_first_token_that_differs_and_the_step_that_introduces_more_error_are_shown(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    write(tmp_path, RUNS[0], [passed_cell(request_8a8w, comparison=replace(COMPARISON, steps=SEQUENCE))])
    write(tmp_path, RUNS[1], [passed_cell(request_8a8w, comparison=replace(COMPARISON, steps=WRONG_FROM_1))])
    ran = program.run("diff", *RUNS[:2], "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (1, "")
    (cell,) = json.loads(ran.stdout)["cells"]
    of_steps = [
        tuple(change[key] for key in ("step", "what", "before", "after", "verdict"))
        for change in cell["changes"]
        if change["step"]
    ]
    name = 'step {} (decode) of "a"'
    assert of_steps == [
        (name.format(1), "token", "8 't1'", "1", "regressed"),
        (name.format(1), "introduced_snr_db", 40.0, 12.0, "regressed"),
        (name.format(1), "state_introduced_snr_db", 50.0, 49.0, "steady"),
        (name.format(2), "origin", "introduced", "diverged", "changed"),
        (name.format(3), "step", "there", None, "changed"),
    ]
    table = program.run("diff", *RUNS[:2], f"--artifacts={tmp_path}").stdout
    assert 'step 1 (decode) of "a" introduced_snr_db  40 dB' in table
    back = json.loads(program.run("diff", RUNS[1], RUNS[0], "--json", f"--artifacts={tmp_path}").stdout)
    tokens = [change for change in back["cells"][0]["changes"] if change["what"] == "token"]
    assert [(change["step"], change["verdict"]) for change in tokens] == [(name.format(1), "improved")]


@pytest.mark.parametrize(
    ("runner", "exit_code", "verdict"), [(RunnerKind.python, 0, "changed"), (RunnerKind.native, 1, "regressed")]
)
def test_the_latency_of_a_simulator_is_shown_and_not_judged(
    program: Program, request_8a8w: Request, tmp_path: Path, runner: RunnerKind, exit_code: int, verdict: str
) -> None:
    request = replace(request_8a8w, device=replace(request_8a8w.device, runner=runner))
    slower = replace(SHIPPING, latencies_ms=(4.0, 12.0))
    capture = with_method(CAPTURE, results=(slower,))
    write(tmp_path, RUNS[0], [passed_cell(request)])
    write(tmp_path, RUNS[1], [passed_cell(request, capture=capture)])
    ran = program.run("diff", RUNS[0], RUNS[1], "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (exit_code, "")
    assert changes(json.loads(ran.stdout)) == [(None, "latency_p50_ms", 4.0, 8.0, verdict)]


def test_the_terminal_shows_regressions_and_the_cells_that_only_one_run_has(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    removed, added = (replace(request_8a8w, soc=replace(request_8a8w.soc, name=name)) for name in ("SM8550", "SM8750"))
    write(tmp_path, RUNS[0], [passed_cell(request_8a8w), passed_cell(removed)])
    write(tmp_path, RUNS[1], [up_to_lower(request_8a8w, "execute", RuntimeError("boom")), passed_cell(added)])
    ran = program.run("diff", RUNS[0], RUNS[1], f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (1, "")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines() if line.strip() and "─" not in line]
    cell = "digits_cnn · 8a8w · {} · qnn · local"
    assert lines[0] == "what before after limit verdict"
    assert lines[1].startswith(cell.format("SM8650"))
    assert "outcome passed failed – regressed" in lines
    assert lines[-4:-1] == [
        f"{cell.format('SM8550')}: only in {RUNS[0]}",
        f"{cell.format('SM8750')}: only in {RUNS[1]}",
        f"1 of 1 common cell regressed, 1 cell lost, {RUNS[0]} -> {RUNS[1]}",
    ]


def test_a_cell_that_moved_to_another_device_is_the_same_cell(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    moved = replace(request_8a8w, device=replace(request_8a8w.device, name="phone"))
    write(tmp_path, RUNS[0], [up_to_lower(request_8a8w, "deploy", DeviceError("unplugged"))])
    write(tmp_path, RUNS[1], [up_to_lower(moved, "deploy", DeviceError("unplugged"))])
    difference = json.loads(program.run("diff", RUNS[0], RUNS[1], "--json", f"--artifacts={tmp_path}").stdout)
    assert (difference["only_in_a"], difference["only_in_b"], difference["cells"][0]["changes"]) == ([], [], [])
    assert difference["cells"][0]["changed"] == ["device local -> phone"]


def test_runs_without_a_common_cell_are_a_wrong_request(
    program: Program, request_8a8w: Request, tmp_path: Path
) -> None:
    other = replace(request_8a8w, soc=replace(request_8a8w.soc, name="SM8750"))
    write(tmp_path, RUNS[0], [passed_cell(request_8a8w)])
    write(tmp_path, RUNS[1], [passed_cell(other)])
    ran = program.run("diff", *RUNS[:2], f"--artifacts={tmp_path}")
    have = "; ".join(
        f"{run} has digits_cnn · 8a8w · {soc} · qnn · local"
        for run, soc in zip(RUNS, ("SM8650", "SM8750"), strict=False)
    )
    problem = "the runs have no cell in common, so nothing can be compared"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {problem}: {have}\n")


def test_a_lost_cell_is_no_success_and_a_new_cell_is(program: Program, request_8a8w: Request, tmp_path: Path) -> None:
    other = replace(request_8a8w, soc=replace(request_8a8w.soc, name="SM8750"))
    write(tmp_path, RUNS[0], [passed_cell(request_8a8w), passed_cell(other)])
    write(tmp_path, RUNS[1], [passed_cell(request_8a8w)])
    lost, added = (program.run("diff", *runs, "--json", f"--artifacts={tmp_path}") for runs in (RUNS[:2], RUNS[1::-1]))
    assert [(ran.returncode, json.loads(ran.stdout)["lost"]) for ran in (lost, added)] == [(1, 1), (0, 0)]


Values = tuple[float, float]


@pytest.mark.parametrize(
    ("name", "values", "ceiling", "noise", "verdict"),
    [
        ("introduced_snr_db", (95.5, 88.1), 51.0, None, "steady"),  # the final outputs have 31 dB
        ("introduced_snr_db", (95.5, 40.0), 51.0, None, "regressed"),
        ("introduced_snr_db", (40.0, 95.5), 51.0, None, "improved"),
        ("final_snr_db", (95.5, 88.1), 80.0, None, "steady"),
        ("final_snr_db", (95.5, 78.0), 80.0, None, "regressed"),
        ("final_snr_db", (11.2, 31.0), 80.0, 14.0, "within_noise"),
        ("final_snr_db", (31.0, 11.2), 80.0, 14.0, "within_noise"),
        ("final_snr_db", (31.0, 30.5), 80.0, 14.0, "steady"),
        ("pte_bytes", (1e6, 2e6), 51.0, None, "regressed"),
    ],
)
def test_a_change_is_judged_by_its_effect_on_the_final_output(
    name: str, values: Values, ceiling: float, noise: float | None, verdict: str
) -> None:
    series = {**SERIES, **OPERATOR_SERIES}[name]
    trend = None if noise is None else {"floor": 1.0, "noise": noise}
    floor = getattr(TrendConfig().floors, name)
    (change,) = number_change(name, series, *values, floor, trend, ceiling)
    assert change.verdict == verdict


def test_operators_of_equal_final_outputs_have_no_effect(request_8a8w: Request) -> None:
    worse = replace(COMPARISON, operators=WORSE_OPERATORS)
    sides = [
        rows(run, [passed_cell(request_8a8w, comparison=comparison)], OLD)
        for run, comparison in ((RUNS[0], COMPARISON), (RUNS[1], worse))
    ]
    for contents in sides:
        for cell in contents["cells"]:
            cell |= {"final_difference": "none", "final_snr_db": None}
    a, b = (
        Side(name=name, cells=contents["cells"], operators=contents["operators"], steps=[])
        for name, contents in zip(RUNS, sides, strict=False)
    )
    (cell,) = differences(a, b).cells
    assert [change.verdict for change in cell.changes if change.what == "snr_db"] == ["steady"]


ALL = ", ".join(RUNS)


@pytest.mark.parametrize(
    ("word", "begin", "end"),
    [
        ("2025", "no run '2025' in ", f"; there are: {ALL}"),
        ("", "no run '' in ", f"; there are: {ALL}"),
        ("20261121", "'20261121' matches several runs in ", f": {RUNS[1]}, {RUNS[2]}; name one of them"),
    ],
)
def test_an_unknown_or_ambiguous_run_is_one_line_and_the_exit_code_is_2(
    program: Program, request_8a8w: Request, tmp_path: Path, word: str, begin: str, end: str
) -> None:
    for run in RUNS:
        write(tmp_path, run, [passed_cell(request_8a8w)])
    ran = program.run("diff", word, "latest", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {begin}{tmp_path}{end}\n")
