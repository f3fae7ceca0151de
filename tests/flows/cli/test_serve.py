"""`qnnsweep serve` with a real Prefect server: scheduled runs, runs on request, and cancellation."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.cluster import wait_until
from tests.processes import assert_gone, command_of
from tests.program import Program

SMALL = ("model=digits_cnn", "model.evaluation.count=4", "scheme=fp32", "backend=portable", "soc=SM8650")
RUN_S = 600


def api_call(client: httpx.Client, method: str, path: str, **json: Any) -> Any:
    """Return the answer of the server. It answers 503 while its database, which is one file, is busy."""
    answers = wait_until(
        lambda: [answer for answer in [client.request(method, path, json=json or None)] if answer.status_code != 503],
        120,
        f"{method} {path} is answered",
    )
    return answers[0].raise_for_status().json()


def ended(client: httpx.Client, run: str) -> dict[str, Any] | None:
    state = api_call(client, "GET", f"/flow_runs/{run}")["state"]
    return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None


@pytest.mark.slow
@pytest.mark.toolchain
def test_a_sweep_is_scheduled_and_runs_on_request_with_other_overrides(
    served_program: Program, prefect_api: httpx.Client, tmp_path: Path
) -> None:
    nightly = ["experiment=nightly", f"artifacts={tmp_path}", "schedule.timezone=Europe/Berlin"]
    with served_program.start("serve", *nightly) as serving:
        try:
            assert serving.stderr is not None
            lines = [serving.stderr.readline().rstrip() for _ in range(4)]
            assert lines[0] == "sweep/nightly: 36 cells, 0 22 * * * Europe/Berlin"
            assert lines[2] == "Ctrl-C ends this process and pauses the schedule"
            assert re.fullmatch(r"the next sweep starts at \d{4}-\d\d-\d\d 22:00 CES?T", lines[3])
            deployment = wait_until(lambda: deployment_of(prefect_api), 60, "there is a deployment")
            (schedule,) = deployment["schedules"]
            assert (schedule["active"], schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == (
                True, "0 22 * * *", "Europe/Berlin",
            )  # fmt: skip
            assert deployment["parameters"] == {"overrides": nightly, "config_dirs": []}
            run = api_call(
                prefect_api, "POST", f"/deployments/{deployment['id']}/create_flow_run",
                parameters={"overrides": [*SMALL, f"artifacts={tmp_path}"]}, state={"type": "SCHEDULED"},
            )  # fmt: skip
            state = wait_until(lambda: ended(prefect_api, run["id"]), RUN_S, "the run ends")
            assert state["type"] == "COMPLETED", state
            (run_id,) = tables.runs(Store(tmp_path))
            assert [row["outcome"] for row in tables.rows(Store(tmp_path), "cells", run_id)] == ["passed"]
            artifacts = api_call(prefect_api, "POST", "/artifacts/filter", flow_runs={"id": {"any_": [run["id"]]}})
            assert {artifact["key"] for artifact in artifacts} == {"cells-done", "cells", "sweep", "report", "files"}
            said = [serving.stderr.readline().rstrip() for _ in range(2)]
            assert [re.sub(r"^\S+ \S+ | after \d+ s|http\S+", "", line) for line in said] == [
                "a sweep has started: ",
                f"a sweep has ended: Completed; {lines[3]}",
            ]
        finally:
            serving.send_signal(signal.SIGTERM)
            rest = serving.communicate(timeout=60)[1]
    assert (serving.returncode, rest) == (0, "")
    assert wait_until(lambda: deployment_of(prefect_api), 60, "there is a deployment")["paused"]


@pytest.mark.slow
@pytest.mark.toolchain
def test_a_run_that_is_cancelled_in_the_ui_ends_its_workers(
    served_program: Program, prefect_api: httpx.Client, tmp_path: Path
) -> None:
    with served_program.start("serve", *SMALL, f"artifacts={tmp_path}") as serving:
        try:
            deployment = wait_until(lambda: deployment_of(prefect_api), 60, "there is a deployment")
            run = api_call(
                prefect_api, "POST", f"/deployments/{deployment['id']}/create_flow_run",
                parameters={"overrides": [*SMALL, f"artifacts={tmp_path}"]}, state={"type": "SCHEDULED"},
            )  # fmt: skip
            working = wait_until(lambda: with_worker(serving.pid), RUN_S, "a worker runs")
            api_call(prefect_api, "POST", f"/flow_runs/{run['id']}/set_state", state={"type": "CANCELLING"})
            state = wait_until(lambda: ended(prefect_api, run["id"]), 120, "the run ends")
            assert state["type"] == "CANCELLED", state
            assert_gone(working, within_s=30)
            assert tables.runs(Store(tmp_path)) == []
        finally:
            serving.send_signal(signal.SIGINT)
            serving.wait(timeout=60)


def with_worker(pid: int) -> list[psutil.Process]:
    """Return all processes below a process, if one of them is a server of workers."""
    processes = psutil.Process(pid).children(recursive=True)
    return processes if any("workers.server" in command_of(process.pid) for process in processes) else []


def deployment_of(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/deployments/name/sweep/nightly")
    return answer.json() if answer.status_code == 200 else {}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "schedule.cron=nightly",
            "schedule.cron=nightly: must be five fields, for example 0 22 * * * for every night at ten",
        ),
        ("schedule.timezone=Nowhere", "schedule.timezone=Nowhere: must be a name of the tz database"),
    ],
)
def test_an_invalid_schedule_is_refused_at_once(program: Program, override: str, line: str) -> None:
    ran = program.run("serve", "experiment=nightly", override)
    assert (ran.returncode, ran.stderr) == (2, f"qnnsweep: {line}\n")


def test_serve_without_a_configured_server_is_refused(program: Program) -> None:
    ran = program.run("serve", "experiment=nightly")
    assert ran.returncode == 3
    assert ran.stderr == (
        "qnnsweep: no Prefect server is configured: start one as docs/prefect.md shows, then set "
        "PREFECT_API_URL=http://127.0.0.1:4200/api and PREFECT_API_AUTH_STRING\n"
    )
