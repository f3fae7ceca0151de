"""Sweeps of the real program with the real toolchain: their outputs, and their behaviour when they are killed."""

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

from qnnsweep.tasks.storage import tables
from tests.flows.sweep_outputs import TIMES, assert_files_are_complete, assert_no_leftovers, read_table, result_of
from tests.processes import assert_gone, command_of
from tests.program import Program

pytestmark = pytest.mark.toolchain

DIGITS = (
    *("model=digits_cnn", "model.evaluation.count=8", "model.calibration.count=32", "limits.parallel=2"),
    *("measure.operator_samples=1", "measure.cures=0"),
)
HISTORY = {"value", "nights", "level", "noise", "floor", "verdict", "runs", "values"}
"""The columns of `trends` that depend on earlier runs."""
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
from qnnsweep.flows.server.settings import configure_prefect
configure_prefect()
from prefect.client.orchestration import get_client
from prefect.client.schemas.sorting import ArtifactSort
with get_client(sync_client=True) as client:
    artifacts = client.read_artifacts(limit=200, sort=ArtifactSort.CREATED_DESC)
print(json.dumps([{"key": a.key, "data": a.data, "description": a.description or ""} for a in artifacts]))
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all sweeps of this file, which share their exported models."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's configuration: a device on which every debug program aborts, and a good and a bad model."""
    folder = tmp_path_factory.mktemp("user")
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
def two_runs(
    program: Program, served_program: Program, artifacts: Path, user_folder: Path
) -> list[subprocess.CompletedProcess[str]]:
    """The same command twice, the second time with a temporary Prefect server.

    It has a good cell, one that aborts natively, and two that are impossible.
    """
    command = ["run", "--json", f"--config-dir={user_folder}", *DIGITS, "scheme=8a8w,fp16", "soc=SM8350"]
    command += ["device=local,starved", f"artifacts={artifacts}"]
    return [served_program.run(*command), program.run(*command)]


def wait_for(start: str, process: subprocess.Popen[str]) -> None:
    """Read stderr up to a line that starts so."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(start):
            return
    raise AssertionError("".join(lines))


def wait_for_lowering(process: subprocess.Popen[str], artifacts: Path) -> list[psutil.Process]:
    """Wait until a worker lowers, and return every process that the program has started."""
    wait_for("quantize ", process)
    while not list(artifacts.glob("partial/*/lower")):
        assert process.poll() is None
        time.sleep(0.05)
    return psutil.Process(process.pid).children(recursive=True)


def test_a_cell_that_aborts_natively_is_one_failed_row_and_its_neighbour_passes(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    ran = two_runs[0]
    assert ran.returncode == 1
    cells = read_table(artifacts, "cells", result_of(ran)["run_id"])
    outcomes = [(row["scheme"], row["device"], row["outcome"], row["stage"], row["error_type"]) for row in cells]
    assert outcomes == [
        ("8a8w", "local", "passed", "compare", None),
        ("8a8w", "starved", "failed", "execute", "RunnerFailed"),
        ("fp16", "local", "impossible", None, None),
        ("fp16", "starved", "impossible", None, None),
    ]
    assert [row["reason"] for row in cells] == [None, None, IMPOSSIBLE, IMPOSSIBLE]
    assert cells[1]["error"].startswith("the debug program ended with SIGABRT on starved\n")
    assert "failed to write tensor to debug buffer" in cells[1]["error"]
    assert (cells[0]["top1_agreement"], cells[0]["samples"]) == (1.0, 8)
    samples = cells[0]["operators_total"] // 18  # the worst sample on the device may be captured too
    assert (cells[0]["operators_compared"], cells[0]["operators_total"]) == (7 * samples, 18 * samples)
    # The operators that were lowered before the abort have rows.
    operators = read_table(artifacts, "operators", result_of(ran)["run_id"])
    assert [row["status"] for row in operators if row["device"] == "starved"] == ["not_dumped"] * 18
    # Of the good cell, every operator that was compared has a verdict.
    verdicts = [row["verdict"] for row in operators if row["device"] == "local" and row["snr_db"] is not None]
    assert (len(verdicts), set(verdicts) - {"exact", "within_grid", "inherited"}) == (7 * samples, set())
    assert (cells[0]["operators_introduced"], cells[1]["operators_introduced"]) == (0, None)


def test_the_last_line_of_stdout_is_one_json_object(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    summaries = [result_of(ran) for ran in two_runs]
    run_ids = [summary["run_id"] for summary in summaries]
    assert run_ids == sorted(set(run_ids))
    assert [{cell["outcome"] for cell in summary.pop("results")} for summary in summaries] == [
        {"failed", "impossible", "passed"}
    ] * 2
    assert summaries == [
        {
            "schema": "qnnsweep/run/1",
            "run_id": run_id,
            "cells": 4,
            "outcomes": {"failed": 1, "impossible": 2, "passed": 1},
            "regressions": 0,
            "worse_since_an_earlier_run": 0,
            "toolchain_calls": calls,
            "reused": reused,
            "tables": str(artifacts / "tables"),
            "report": str(artifacts / "runs" / run_id / "report.html"),
        }
        for run_id, calls, reused in zip(run_ids, (3, 0), (0, 6), strict=True)
    ]


def test_the_same_command_again_does_no_toolchain_work_and_gives_equal_tables(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    assert [ran.returncode for ran in two_runs] == [1, 1]
    first, second = (result_of(ran)["run_id"] for ran in two_runs)
    for name in set(tables.TABLES) - {"work"}:  # which has only calls that were made
        neutral = {"run_id"} | TIMES.get(name, set()) | (HISTORY if name == "trends" else set())
        before, after = (
            [{key: row[key] for key in row.keys() - neutral} for row in read_table(artifacts, name, run)]
            for run in (first, second)
        )
        assert after == before
        # No metrics are asked for, nothing is repaired, and the model has no states.
        assert before or name in {"metrics", "repair", "certificate", "steps", "scores", "atlas"}


def test_every_stage_that_ran_has_a_row_of_its_work(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    of_runs = [read_table(artifacts, "work", result_of(ran)["run_id"]) for ran in two_runs]
    stages = [{(row["stage"], row["soc"], row["device"]) for row in rows} for rows in of_runs]
    of_cells = {(stage, "SM8350", "local") for stage in ("bundle", "deploy", "execute", "collect")}
    calls = {(stage, None, None) for stage in ("export", "quantize", "edge")}
    calls |= {(stage, "SM8350", None) for stage in ("lower", "compare")}
    # No program fits into the memory of the device starved, which therefore executes none.
    of_cells |= {(stage, "SM8350", "starved") for stage in ("bundle", "deploy")}
    assert (stages[0], stages[1] - of_cells) == (calls | of_cells, {("compare", "SM8350", None)})


def test_a_plan_of_the_same_command_says_what_is_compiled_and_how_long_it_takes(
    program: Program, two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path, user_folder: Path
) -> None:
    assert [ran.returncode for ran in two_runs] == [1, 1]
    command = ["plan", f"--config-dir={user_folder}", *DIGITS, "scheme=8a8w,fp16", "soc=SM8350"]
    command += ["device=local,starved", f"artifacts={artifacts}"]
    planned = json.loads(program.run(*command, "--json").stdout)
    compiled = {(cell["scheme"], cell["device"]): cell["compiled"] for cell in planned["cells"]}
    assert compiled == {
        ("8a8w", "local"): True,
        ("8a8w", "starved"): True,
        ("fp16", "local"): False,
        ("fp16", "starved"): False,
    }
    assert planned["seconds"] > 0
    words = program.run(*command).stdout.splitlines()[-1].strip()
    assert re.fullmatch(r"2 compiled by earlier runs \(↺\); about \d+ (s|min), if the machine is as busy .*", words)
    changed = program.run(*command, "scheme.observer=HistogramObserver", "--json")
    assert {cell["compiled"] for cell in json.loads(changed.stdout)["cells"]} == {False}


def test_pandas_reads_all_runs_of_a_table_in_one_line(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path
) -> None:
    cells = pandas.read_parquet(artifacts / "tables" / "cells")
    assert {result_of(ran)["run_id"] for ran in two_runs} <= set(cells["run_id"])


def test_the_report_names_every_cell_and_the_whole_command(two_runs: list[subprocess.CompletedProcess[str]]) -> None:
    page = Path(result_of(two_runs[0])["report"]).read_text()
    for words in ("digits_cnn", "8a8w", "fp16", "SM8350", "local", "starved", "SIGABRT", IMPOSSIBLE, "qnnsweep run"):
        assert words in page


def test_prefect_has_the_progress_the_cells_and_the_links_of_a_run(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path, served_program: Program
) -> None:
    run_id = result_of(two_runs[0])["run_id"]
    ran = served_program.python(ARTIFACTS)
    assert ran.stderr == ""
    data = {
        artifact["key"]: artifact["data"]
        for artifact in json.loads(ran.stdout)
        if artifact["description"].startswith(run_id) or str(artifact["data"]).startswith(f"# Run {run_id}")
    }
    assert set(data) == {"cells-done", "sweep", "cells", "report", "files"}
    assert data["cells-done"] == 100.0
    assert data["report"] == f"[Report of {run_id}](http://127.0.0.1:4280/runs/{run_id}/report.html)"
    assert data["files"].endswith(f"(http://127.0.0.1:4280/runs/{run_id}/files/)")
    assert f"`qnnsweep ui --artifacts={artifacts}`" in data["sweep"]
    rows = json.loads(data["cells"])
    assert [(row["scheme"], row["device"], row["outcome"]) for row in rows] == [
        ("8a8w", "local", "✓ passed"), ("8a8w", "starved", "✗ failed"),
        ("fp16", "local", "∅ impossible"), ("fp16", "starved", "∅ impossible"),
    ]  # fmt: skip
    rounded = [re.fullmatch(r"\d+\.\d|–", row["lowest SNR dB"]) for row in rows]
    assert all(rounded), rows


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
    trace = json.loads((cell / "perfetto_trace.json").read_text())
    assert trace["otherData"]["cell"] == "digits_cnn/8a8w/SM8350/qnn/local"
    assert {event["name"] for event in trace["traceEvents"]} >= {"Method::execute", "DELEGATE_CALL #0"}
    names = {path.name for path in (cell / "model_explorer").iterdir()}
    assert names == {"edge.json", "exported.pt2", *(f"edge_{name}.json" for name in NODE_DATA)}
    nodes = {
        node["id"] for node in json.loads((cell / "model_explorer" / "edge.json").read_text())["graphs"][0]["nodes"]
    }
    for name in NODE_DATA:
        results = json.loads((cell / "model_explorer" / f"edge_{name}.json").read_text())["edge"]["results"]
        assert results
        assert set(results) <= nodes


@pytest.mark.parametrize(
    ("name", "start"),
    [("junit", "<?xml "), ("hud", "[\n {\n  "), ("suite", "Test ID,"), ("github", "::error title=digits_cnn/8a8w/")],
)
def test_a_run_is_printed_in_the_format_of_another_tool(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path, program: Program, name: str, start: str
) -> None:
    run = result_of(two_runs[0])["run_id"]
    ran = program.run("report", run, f"--format={name}", f"--artifacts={artifacts}")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(start)


def test_stderr_has_one_line_per_progress_event_and_nothing_else(
    two_runs: list[subprocess.CompletedProcess[str]],
) -> None:
    for ran in two_runs:
        form = re.compile(
            r"(\w+) +digits_cnn[\w ·]*  (done|reused|failed)(  \d+\.\d s)?(  \(\d of 2 cells(, about \d+ s left)?\))?"
        )
        first, *lines = ran.stderr.splitlines()
        assert first == "2 cells to run, 2 impossible"
        problem = "✗ measure digits_cnn · 8a8w · SM8350 · starved: the debug program ended with SIGABRT on starved"
        assert [line for line in lines if not form.fullmatch(line) and line != problem] == []
        counts = [line.rpartition("(")[2] for line in lines if line.endswith(")")]
        assert [count[0] for count in counts] == ["1", "2"]
    stages = [line.split()[0] for line in two_runs[0].stderr.splitlines()[1:] if not line.startswith("✗")]
    shared, separate = ["export", "lower", "quantize"], ["bundle", "deploy", "execute"]
    assert sorted(stages) == sorted([*shared, *separate, *separate, "collect", "compare"])


def test_a_past_run_is_reported_again_byte_for_byte(
    two_runs: list[subprocess.CompletedProcess[str]], artifacts: Path, program: Program
) -> None:
    summary = result_of(two_runs[0])
    page = Path(summary["report"])
    before = page.read_bytes()
    page.unlink()
    ran = program.run("report", summary["run_id"], "--json", f"--artifacts={artifacts}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, two_runs[0].stdout, "")
    assert page.read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_with_a_message_and_leaves_no_process(program: Program, artifacts: Path) -> None:
    command = ["run", *DIGITS, "scheme=16a8w", "soc=SM8450", f"artifacts={artifacts}"]
    with program.start(*command) as process:
        processes = wait_for_lowering(process, artifacts)
        assert len(processes) >= 3
        # As with a terminal, the whole process group gets the signal.
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "qnnsweep: interrupted; run the same command again to continue"
    assert "Traceback" not in stderr
    assert_gone(processes, within_s=30)


@pytest.mark.slow
def test_sigterm_ends_a_sweep_at_once_although_its_workers_are_suspended_and_leaves_no_process(
    program: Program, artifacts: Path
) -> None:
    command = ["run", *DIGITS, "scheme=16a8w", "soc=SM8450", f"artifacts={artifacts}"]
    with program.start(*command) as process:
        processes = wait_for_lowering(process, artifacts)
        working = [worker for worker in processes if "workers.server" in command_of(worker.pid)]
        assert len(working) >= 2
        for worker in working:
            worker.suspend()
        try:
            process.terminate()
            assert process.wait(timeout=60) == -signal.SIGTERM
        finally:
            for worker in working:
                worker.resume()
        assert_gone(processes, within_s=30)


@pytest.mark.slow
def test_after_sigkill_the_same_command_completes_and_no_file_is_incomplete(program: Program, artifacts: Path) -> None:
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
    folders = {"blobs", "devices", "partial", "results", "runs", "tables"}
    assert {path.name for path in artifacts.iterdir()} == folders


def test_a_users_model_passes_and_a_model_that_cannot_be_exported_is_one_failed_row(
    served_program: Program, artifacts: Path, user_folder: Path
) -> None:
    command = ["run", "--json", f"--config-dir={user_folder}", "model=branching,my_net", "tolerance=none"]
    ran = served_program.run(*command, f"artifacts={artifacts}")
    assert ran.returncode == 1
    cells = read_table(artifacts, "cells", result_of(ran)["run_id"])
    branching, my_net = ("branching", "failed", "export"), ("my_net", "passed", "compare")
    assert [(row["model"], row["outcome"], row["stage"]) for row in cells] == [branching, my_net]
    assert cells[0]["error_type"] == "RequestError"
    assert "decides by the values of a tensor at `return image + 1 if" in cells[0]["error"]
    assert (cells[1]["weights"], cells[1]["samples"]) == ("random", 4)
