"""`qnnsweep export`: a run is written offline, and read back by the client of the tracker itself."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.flows.runs import results
from qnnsweep.tasks.records.tables import TABLES, Row
from qnnsweep.tasks.report.trackers.names import Tracker
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.program import Program
from tests.sample_tables import NIGHTS, RUN, cell, sweep, trend

SETTINGS = ["model.calibration.count=64", "scheme.overrides=[{module: head}]", "tolerance.operators.8a8w.gain=0.05"]
PASSED, FAILED = "toy/8a8w/SM8650/qnn/local", "toy/16a8w/SM8650/qnn/local"
GOOD, BAD = (
    {"final_snr_db": 31.5, "pte_bytes": 71_000, "lower_s": 1.9, "delegated_nodes": 3, "non_delegated_nodes": 1},
    {"outcome": "failed", "stage": "lower", "error": "no kernel " * 1000},
)


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a run of two cells: one that passed and got worse, and one that failed."""
    folder = tmp_path_factory.mktemp("artifacts")
    cells = [cell("toy", "8a8w", "SM8650", **GOOD, settings=SETTINGS), cell("toy", "16a8w", "SM8650", **BAD)]
    contents: dict[str, list[Row]] = {table: [] for table in TABLES} | sweep(cells)
    results.write(RUN, contents, Store(folder), None)
    worse = trend(cells[0], "final_snr_db", 60.0, 0.1, verdict="regressed", first_bad_run=NIGHTS[-1])
    tables.write(Store(folder), RUN.run_id, "trends", [worse])
    return str(folder)


def exported(program: Program, artifacts: str, tracker: str, folder: Path) -> dict[str, Any]:
    """Export the run into the folder. Return the object that is printed."""
    ran = program.run("export", tracker, "latest", f"artifacts={artifacts}", f"--to={folder}", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


def test_mlflow_reads_an_experiment_with_a_run_per_cell_below_the_whole(
    program: Program, artifacts: str, tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow, which requirements/dev.txt has, is not installed")
    printed = exported(program, artifacts, "mlflow", tmp_path)
    assert printed["open"] == f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name(RUN.run_id)
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {RUN.run_id, PASSED, FAILED}
    whole, passed, failed = (runs[key] for key in (RUN.run_id, PASSED, FAILED))
    assert (whole.data.metrics["cells"], whole.data.metrics["cells_regressed"]) == (2, 1)
    assert [file.path for file in client.list_artifacts(whole.info.run_id)] == ["report.html"]
    assert passed.data.params.items() >= {"scheme": "8a8w", "model.calibration.count": "64"}.items()
    assert passed.data.metrics == GOOD | {"delegated_share": 0.75}
    assert [key for key in passed.data.params if "tolerance" in key] == []
    assert (passed.data.tags["outcome"], passed.data.tags["verdict"]) == ("passed", "regressed")
    assert [run.info.status for run in (passed, failed)] == ["FINISHED", "FAILED"]
    assert {run.data.tags["mlflow.parentRunId"] for run in (passed, failed)} == {whole.info.run_id}
    assert failed.data.tags["error"] == str(BAD["error"])[:8000]


def test_tensorboard_reads_event_files_with_the_hyperparameters_of_each_cell(
    program: Program, artifacts: str, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard, which requirements/dev.txt has, is not installed")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams import api_pb2, metadata

    exported(program, artifacts, "tensorboard", tmp_path)
    events: Any = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    runs = {key.removeprefix(f"{RUN.run_id}/"): key for key in events.Runs()}
    assert set(runs) == {RUN.run_id, PASSED, FAILED}

    def hparams(run: str, tag: str) -> bytes:
        return events.SummaryMetadata(runs[run], tag).plugin_data.content

    assert [point.value for point in events.Scalars(runs[PASSED], "final_snr_db")] == [31.5]
    assert [point.value for point in events.Scalars(runs[RUN.run_id], "cells_regressed")] == [1]
    (verdict,) = events.Tensors(runs[PASSED], "verdict")
    assert verdict.tensor_proto.string_val[0] == b"regressed"
    started = metadata.parse_session_start_info_plugin_data(hparams(PASSED, metadata.SESSION_START_INFO_TAG))
    assert started.hparams["model.calibration.count"].string_value == "64"
    ended = metadata.parse_session_end_info_plugin_data(hparams(FAILED, metadata.SESSION_END_INFO_TAG))
    assert ended.status == api_pb2.STATUS_FAILURE
    experiment = metadata.parse_experiment_plugin_data(hparams(RUN.run_id, metadata.EXPERIMENT_TAG))
    assert "final_snr_db" in {metric.name.tag for metric in experiment.metric_infos}


@dataclass
class WandbServer:
    """The part of the server of Weights & Biases to which `wandb sync` sends."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By name, the variables of each run, and its summary."""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    url: str = ""

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path.startswith("/upload/"):
            self.files[path.removeprefix("/upload/")] = body
            return {}
        request: dict[str, Any] = json.loads(body)
        if path.endswith("/file_stream"):
            (summary,) = request.get("files", {}).get("wandb-summary.json", {}).get("content", ("{}",))
            self.runs[path.split("/")[-2]].setdefault("summary", {}).update(json.loads(summary))
            return {}
        given = request["variables"]
        if request["operationName"] == "UpsertBucket":
            run = self.runs.setdefault(given["name"], {})
            run |= {key: value for key, value in given.items() if value is not None}
            project = {"id": "1", "name": given["project"], "entity": {"id": "1", "name": "me"}}
            bucket = {"id": "1", "name": given["name"], "displayName": "", "config": "{}", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        assert request["operationName"] == "CreateRunFiles"
        files = [{"name": file, "uploadUrl": f"{self.url}/upload/{given['run']}/{file}"} for file in given["files"]]
        return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}


@pytest.fixture
def wandb_server() -> Iterator[WandbServer]:
    state = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            answer = json.dumps(state.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_PUT(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_wandb_sync_reads_an_offline_run_per_cell_in_one_group(
    program: Program, artifacts: str, tmp_path: Path, wandb_server: WandbServer
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb, which requirements/dev.txt has, is not installed")
    printed = exported(program, artifacts, "wandb", tmp_path)
    assert printed["open"] == f"wandb sync {tmp_path}/wandb/offline-run-*"
    command = [str(Path(sys.executable).parent / "wandb"), "sync", "--yes", *tmp_path.glob("wandb/offline-run-*")]
    login = {"WANDB_BASE_URL": wandb_server.url, "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
    subprocess.run(command, env=os.environ | login, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    runs = {run["displayName"]: run for run in wandb_server.runs.values()}
    assert set(runs) == {RUN.run_id, PASSED, FAILED}
    assert {run["groupName"] for run in runs.values()} == {RUN.run_id}
    assert [runs[key]["jobType"] for key in (RUN.run_id, PASSED)] == ["sweep", "cell"]
    assert runs[PASSED]["tags"] == ["passed", "regressed"]
    config = json.loads(runs[PASSED]["config"])
    assert config["model.calibration.count"]["value"] == "64"
    assert (config["scheme"]["value"], config["soc"]["value"]) == ("8a8w", "SM8650")
    assert runs[PASSED]["summary"].items() >= (GOOD | {"delegated_share": 0.75, "verdict": "regressed"}).items()
    assert runs[RUN.run_id]["summary"]["cells_regressed"] == 1
    report = Path(artifacts, results.report_name(RUN.run_id))
    assert wandb_server.files[f"{RUN.run_id}/report.html"] == report.read_bytes()


@pytest.mark.parametrize("tracker", [tracker.value for tracker in Tracker])
def test_a_run_that_is_in_the_folder_is_not_added_twice(
    program: Program, artifacts: str, tmp_path: Path, tracker: str
) -> None:
    pytest.importorskip(tracker, reason=f"the extra {tracker}, which requirements/dev.txt has, is not installed")
    exported(program, artifacts, tracker, tmp_path)
    ran = program.run("export", tracker, f"artifacts={artifacts}", f"--to={tmp_path}")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.endswith(f"--to={tmp_path}: has the run {RUN.run_id} already; choose another folder\n")


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_an_export_that_was_interrupted_is_written_again(program: Program, tmp_path: Path, tracker: str) -> None:
    """In the first call, the report is missing, so that the call ends in the middle."""
    package = pytest.importorskip(
        tracker, reason=f"the extra {tracker}, which requirements/dev.txt has, is not installed"
    )
    lines = f"""
import json
from datetime import UTC, datetime
from pathlib import Path
from qnnsweep.tasks.report.trackers import {tracker} as writer
from qnnsweep.tasks.report.trackers.tracked import Tracked, TrackedRun

folder = Path({str(tmp_path)!r})
whole, cell = (
    Tracked(name=name, parameters={{}}, metrics={{"cells": 1.0}}, tags={{"summary": "one"}}, has_failed=False)
    for name in ("r", "m/s/c")
)
now = datetime.now(UTC)
run = TrackedRun(whole=whole, cells=[cell], started=now, ended=now, report=folder / "report.html")
states = []
try:
    writer.write(run, folder)
except OSError as error:
    states.append(type(error).__name__)
states.append(writer.has("r", folder))
run.report.write_text("<!doctype html>")
writer.write(run, folder)
print(json.dumps([*states, writer.has("r", folder)]))
"""
    ran = program.python(lines)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == ["FileNotFoundError", False, True]
    if tracker == "mlflow":
        client = package.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        written = client.search_runs([client.get_experiment_by_name("r").experiment_id])
    else:
        written = list(tmp_path.glob("wandb/offline-run-*"))
    assert len(written) == 2, "the whole and its cell, once"


@pytest.mark.parametrize("tracker", [tracker.value for tracker in Tracker])
def test_a_missing_package_is_one_line_that_names_the_extra(
    program: Program, artifacts: str, tmp_path: Path, tracker: str
) -> None:
    (tmp_path / f"{tracker}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{tracker}'\")")
    path = os.pathsep.join(filter(None, [str(tmp_path), program.environment.get("PYTHONPATH")]))
    words = ("export", tracker, f"artifacts={artifacts}", f"--to={tmp_path}")
    ran = program.run(*words, PYTHONPATH=path)
    assert (ran.returncode, ran.stdout) == (3, "")
    problem = f"qnnsweep export {tracker} needs a package of its extra (No module named '{tracker}')"
    assert ran.stderr == f"qnnsweep: {problem}; pip install 'qnnsweep[{tracker}]'\n"
