"""Whole sweeps by the real program and the real toolchain: what they leave, and what they survive."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pandas
import psutil
import pytest

from tasks.storage import tables
from tests.processes import assert_gone, command_of

from .conftest import Program
from .sweep_outputs import TIMES, assert_files_are_complete, assert_no_leftovers, read_table, result_of

pytestmark = pytest.mark.toolchain

DIGITS = ("model=digits_cnn", "model.evaluation.count=8", "model.calibration.count=32", "limits.parallel=2")
SEEN = {"value", "nights", "median", "mad", "floor", "verdict", "runs", "values"}
"""What a night of `trends` knows of the nights before it."""
STARVED = """\
# @package _global_
device: {name: starved, transport: local}
measure: {debug_buffer_bytes: 1}
"""
IMPOSSIBLE = "Hexagon v68 computes no 16-bit float; v69 or newer does"
BRANCHING = """\
import torch
from torch import nn


class Branching(nn.Module):
    def forward(self, image):
        return image + 1 if image.sum() > 0 else image


def branching():
    return Branching()
"""
NODE_DATA = ("total_snr_db", "introduced_snr_db", "verdict")
ARTIFACTS = """\
import json
from flows.server.settings import configure_prefect
configure_prefect()
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    found = client.read_artifacts(limit=200)
print(json.dumps([{"key": each.key, "data": each.data, "description": each.description or ""} for each in found]))
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all sweeps of this file: each finds what the others exported."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own folder: a device on which every debug program aborts, the model of docs/models.md, and a bad one."""
    folder = tmp_path_factory.mktemp("mine")
    for group in ("device", "model"):
        (folder / group).mkdir()
    (folder / "device" / "starved.yaml").write_text(STARVED)
    text = DOCUMENT.read_text()
    code, yaml = (
        re.search(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
        for language in ("python", "yaml")
    )
    assert code is not None
    assert yaml is not None
    (folder / "my_net.py").write_text(code[1])
    (folder / "model" / "my_net.yaml").write_text(yaml[1])
    (folder / "branching.py").write_text(BRANCHING)
    branching = yaml[1].replace("my_net:my_net", "branching:branching").replace("name: my_net", "name: branching")
    (folder / "model" / "branching.yaml").write_text(branching.replace("arguments:\n  width: 16\n", ""))
    return folder


@pytest.fixture(scope="module")
def two_runs(program: Program, artifacts: Path, mine: Path) -> list[subprocess.CompletedProcess[str]]:
    """The same command twice: a good cell, one that aborts natively, and two that are impossible."""
    command = ["run", "--json", f"--config-dir={mine}", *DIGITS, "scheme=8a8w,fp16", "soc=SM8350"]
    return [program.run(*command, "device=local,starved", f"artifacts={artifacts}") for _ in range(2)]


def wait_for(line: str, process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    said = []
    for each in process.stderr:
        said.append(each)
        if each.startswith(line):
            return
    raise AssertionError("".join(said))


def wait_for_lowering(process: subprocess.Popen[str], artifacts: Path) -> list[psutil.Process]:
    """Until a worker lowers; every process that the program has started."""
    wait_for("quantize ", process)
    while not list(artifacts.glob("partial/*/lower/worker.log")):
        assert process.poll() is None
        time.sleep(0.05)
    return psutil.Process(process.pid).children(recursive=True)


def test_a_cell_that_aborts_natively_is_one_failed_row_and_its_neighbour_passes(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    ran = two_runs[0]
    assert ran.returncode == 1
    cells = read_table(artifacts, "cells", result_of(ran)["run_id"])
    told = [(row["scheme"], row["device"], row["outcome"], row["stage"], row["error_type"]) for row in cells]
    assert told == [
        ("8a8w", "local", "passed", "compare", None),
        ("8a8w", "starved", "failed", "execute", "RunnerFailed"),
        ("fp16", "local", "impossible", None, None),
        ("fp16", "starved", "impossible", None, None),
    ]
    assert [row["reason"] for row in cells] == [None, None, IMPOSSIBLE, IMPOSSIBLE]
    assert cells[1]["error"].startswith("the debug program ended with SIGABRT on starved\n")
    assert "failed to write tensor to debug buffer" in cells[1]["error"]
    assert (cells[0]["top1_agreement"], cells[0]["samples"]) == (1.0, 8)
    assert (cells[0]["operators_compared"], cells[0]["operators_total"]) == (7, 18)
    # What had been lowered before the abort is still told.
    operators = read_table(artifacts, "operators", result_of(ran)["run_id"])
    assert [row["status"] for row in operators if row["device"] == "starved"] == ["not_dumped"] * 18
    # And of what came through, every operator that was compared is judged.
    judged = [row["verdict"] for row in operators if row["device"] == "local" and row["snr_db"] is not None]
    assert len(judged) == 7
    assert set(judged) <= {"exact", "within_grid", "inherited"}
    assert (cells[0]["operators_introduced"], cells[1]["operators_introduced"]) == (0, None)


def test_the_last_line_of_stdout_is_one_json_object(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    told = [result_of(ran) for ran in two_runs]
    run_ids = [answer["run_id"] for answer in told]
    assert run_ids == sorted(set(run_ids))
    assert told == [
        {
            "run_id": run_id,
            "cells": 4,
            "outcomes": {"failed": 1, "impossible": 2, "passed": 1},
            "regressions": 0,
            "toolchain_calls": calls,
            "reused": reused,
            "tables": str(artifacts / "tables"),
            "report": str(artifacts / "runs" / run_id / "report.html"),
        }
        for run_id, calls, reused in zip(run_ids, (3, 0), (0, 5), strict=True)
    ]


def test_the_same_command_again_does_no_toolchain_work_and_gives_equal_tables(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    assert [ran.returncode for ran in two_runs] == [1, 1]
    first, second = (result_of(ran)["run_id"] for ran in two_runs)
    for name in set(tables.TABLES) - {"work"}:  # which says what was not done again
        neutral = {"run_id"} | TIMES.get(name, set()) | (SEEN if name == "trends" else set())
        before, after = (
            [
                {key: value for key, value in row.items() if key not in neutral}
                for row in read_table(artifacts, name, run)
            ]
            for run in (first, second)
        )
        assert after == before
        assert before or name == "metrics"  # nobody asked for more than a gap has


def test_pandas_reads_all_runs_of_a_table_in_one_line(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    cells = pandas.read_parquet(artifacts / "tables" / "cells")
    assert {result_of(ran)["run_id"] for ran in two_runs} <= set(cells["run_id"])


def test_the_report_names_every_cell_and_the_whole_command(
    two_runs: list[subprocess.CompletedProcess[str]],
) -> None:
    page = Path(result_of(two_runs[0])["report"]).read_text()
    for words in ("digits_cnn", "8a8w", "fp16", "SM8350", "local", "starved", "SIGABRT", IMPOSSIBLE, "qnnsweep run"):
        assert words in page


def test_prefect_shows_how_far_a_run_was_its_cells_and_where_its_files_are(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path, program: Program
) -> None:
    run_id = result_of(two_runs[0])["run_id"]
    ran = program.python(ARTIFACTS)
    assert ran.stderr == ""
    found = [each for each in json.loads(ran.stdout) if each["description"].startswith((run_id, "qnnsweep run"))]
    told = {each["key"]: each["data"] for each in found}
    assert set(told) == {"cells-done", "sweep", "cells", "report", "files"}
    assert told["cells-done"] == 100.0
    assert told["report"].endswith(f"({(artifacts / 'runs' / run_id / 'report.html').as_uri()})")
    assert told["files"].endswith(f"({(artifacts / 'runs' / run_id / 'files').as_uri()})")
    rows = json.loads(told["cells"])
    assert [(row["scheme"], row["device"], row["outcome"]) for row in rows] == [
        ("8a8w", "local", "passed"), ("8a8w", "starved", "failed"),
        ("fp16", "local", "impossible"), ("fp16", "starved", "impossible"),
    ]  # fmt: skip
    assert [type(row["final_snr_db"]) for row in rows] == [float, *[type(None)] * 3]


def test_files_for_perfetto_and_model_explorer_lie_beside_the_programs(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    cell = (
        artifacts
        / "runs"
        / result_of(two_runs[0])["run_id"]
        / "files"
        / "digits_cnn"
        / "8a8w"
        / "SM8350"
        / "qnn"
        / "local"
    )
    traced = json.loads((cell / "perfetto_trace.json").read_text())
    assert traced["otherData"]["cell"] == "digits_cnn/8a8w/SM8350/qnn/local"
    assert {each["name"] for each in traced["traceEvents"]} >= {"Method::execute", "DELEGATE_CALL #0"}
    names = {path.name for path in (cell / "model_explorer").iterdir()}
    assert names == {"edge.json", "exported.pt2", *(f"edge_{each}.json" for each in NODE_DATA)}
    nodes = {
        node["id"] for node in json.loads((cell / "model_explorer" / "edge.json").read_text())["graphs"][0]["nodes"]
    }
    for each in NODE_DATA:
        results = json.loads((cell / "model_explorer" / f"edge_{each}.json").read_text())["edge"]["results"]
        assert results
        assert set(results) <= nodes


def test_progress_is_one_line_an_event_and_nothing_else_is_said(
    two_runs: list[subprocess.CompletedProcess[str]],
) -> None:
    for ran in two_runs:
        form = re.compile(
            r"(\w+) +digits_cnn[\w ·]*  (done|reused|failed)(  \d+\.\d s)?(  \(\d of 2 cells(, about \d+ s left)?\))?"
        )
        assert [line for line in ran.stderr.splitlines() if not form.fullmatch(line)] == []
        ended = [line.rpartition("(")[2] for line in ran.stderr.splitlines() if line.endswith(")")]
        assert [each[0] for each in ended] == ["1", "2"]
    stages = [line.split()[0] for line in two_runs[0].stderr.splitlines()]
    shared, own = ["export", "lower", "quantize"], ["bundle", "deploy", "execute"]
    assert sorted(stages) == sorted([*shared, *own, *own, "collect", "compare"])


def test_a_past_run_is_reported_again_word_for_word(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path, program: Program
) -> None:
    told = result_of(two_runs[0])
    page = Path(told["report"])
    before = page.read_bytes()
    page.unlink()
    ran = program.run("report", told["run_id"], "--json", f"--artifacts={artifacts}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, two_runs[0].stdout, "")
    assert page.read_bytes() == before


def test_ctrl_c_ends_within_seconds_with_a_word_and_leaves_no_process(program: Program, artifacts: Path) -> None:
    command = ["run", *DIGITS, "scheme=16a8w", "soc=SM8450", f"artifacts={artifacts}"]
    with program.start(*command) as process:
        processes = wait_for_lowering(process, artifacts)
        assert len(processes) >= 3
        # As a terminal does it: the whole group of processes gets the signal.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "qnnsweep: interrupted; run the same command again to continue"
    assert "Traceback" not in said
    assert_gone(processes, within_s=5)


def test_sigterm_ends_it_at_once_whatever_it_waits_for_and_leaves_no_process(program: Program, artifacts: Path) -> None:
    command = ["run", *DIGITS, "scheme=16a8w", "soc=SM8450", f"artifacts={artifacts}"]
    with program.start(*command) as process:
        processes = wait_for_lowering(process, artifacts)
        working = [each for each in processes if "forkserver" in command_of(each.pid)]
        assert len(working) >= 2
        for each in working:
            each.suspend()
        try:
            process.terminate()
            assert process.wait(timeout=10) == -signal.SIGTERM
        finally:
            for each in working:
                each.resume()
        assert_gone(processes, within_s=30)


def test_after_kill_9_the_same_command_completes_and_nothing_is_half_written(program: Program, artifacts: Path) -> None:
    command = ["run", "--json", *DIGITS, "scheme=16a8w", "soc=SM8550", f"artifacts={artifacts}"]
    with program.start(*command) as process:
        processes = wait_for_lowering(process, artifacts)
        process.kill()
        assert_gone(processes, within_s=30)
    ran = program.run(*command)
    assert ran.returncode == 0
    assert result_of(ran)["outcomes"] == {"passed": 1}
    assert result_of(ran)["toolchain_calls"] == 1
    assert assert_files_are_complete(artifacts) > 20
    assert_no_leftovers(artifacts)
    known = {"blobs", "devices", "partial", "results", "runs", "tables", "toolchain"}
    assert {path.name for path in artifacts.iterdir()} == known


def test_a_users_own_model_runs_from_his_folder_and_one_that_cannot_be_exported_is_one_failed_row(
    program: Program, artifacts: Path, mine: Path
) -> None:
    command = ["run", "--json", f"--config-dir={mine}", "model=branching,my_net", "tolerance=none"]
    ran = program.run(*command, f"artifacts={artifacts}")
    assert ran.returncode == 1
    cells = read_table(artifacts, "cells", result_of(ran)["run_id"])
    assert [(row["model"], row["outcome"], row["stage"]) for row in cells] == [
        ("branching", "failed", "export"),
        ("my_net", "passed", "compare"),
    ]
    assert cells[0]["error_type"] == "ToolchainError"
    assert "Data-dependent branching" in cells[0]["error"]
    assert (cells[1]["weights"], cells[1]["samples"]) == ("random", 4)
