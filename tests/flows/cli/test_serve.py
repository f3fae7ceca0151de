"""Nights that run themselves: a real Prefect server, `qnnsweep serve`, and somebody who asks for a run in between."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tasks.storage import tables
from tasks.storage.store import Store
from tests.flows.cluster import wait_until
from tests.processes import assert_gone, command_of
from tests.program import Program, new_program, with_server

SMALL = ("model=digits_cnn", "model.evaluation.count=4", "scheme=fp32", "backend=portable", "soc=SM8650")
RUN_S = 600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, httpx.Client]]:
    with with_server(new_program(tmp_path_factory)) as served:
        yield served


def asked(client: httpx.Client, method: str, path: str, **json: Any) -> Any:
    """The server's answer. 503 is its word for "later": its database is one file, and busy."""
    answer = wait_until(
        lambda: [each for each in [client.request(method, path, json=json or None)] if each.status_code != 503],
        120,
        f"{method} {path} is answered",
    )
    return answer[0].raise_for_status().json()


def ended(client: httpx.Client, run: str) -> dict[str, Any] | None:
    state = asked(client, "GET", f"/flow_runs/{run}")["state"]
    return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None


@pytest.mark.toolchain
def test_a_night_is_scheduled_and_a_sweep_of_one_s_own_runs_when_somebody_asks(
    served: tuple[Program, httpx.Client], tmp_path: Path
) -> None:
    program, client = served
    nightly = ["experiment=nightly", f"artifacts={tmp_path}", "schedule.timezone=Europe/Berlin"]
    with program.start("serve", *nightly) as serving:
        try:
            assert serving.stderr is not None
            told = [serving.stderr.readline().rstrip() for _ in range(3)]
            assert told[0] == "sweep/nightly: 36 cells, 0 22 * * * Europe/Berlin"
            assert told[2] == "Ctrl-C ends it and pauses the schedule"
            deployment = wait_until(lambda: found(client), 60, "there is a deployment")
            (schedule,) = deployment["schedules"]
            assert (schedule["active"], schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == (
                True, "0 22 * * *", "Europe/Berlin",
            )  # fmt: skip
            assert deployment["parameters"] == {"overrides": nightly, "config_dirs": []}
            run = asked(
                client, "POST", f"/deployments/{deployment['id']}/create_flow_run",
                parameters={"overrides": [*SMALL, f"artifacts={tmp_path}"]}, state={"type": "SCHEDULED"},
            )  # fmt: skip
            state = wait_until(lambda: ended(client, run["id"]), RUN_S, "the run ends")
            assert state["type"] == "COMPLETED", state
            (run_id,) = tables.runs(Store(tmp_path))
            assert tables.read(Store(tmp_path), "cells", run_id)["outcome"].tolist() == ["passed"]
            kept = asked(client, "POST", "/artifacts/filter", flow_runs={"id": {"any_": [run["id"]]}})
            assert {each["key"] for each in kept} == {"cells-done", "cells", "sweep", "report", "files"}
        finally:
            serving.send_signal(signal.SIGINT)
            serving.wait(timeout=60)
    assert wait_until(lambda: found(client), 60, "there is a deployment")["paused"]


@pytest.mark.toolchain
def test_a_run_that_is_cancelled_from_the_ui_stops_its_children(
    served: tuple[Program, httpx.Client], tmp_path: Path
) -> None:
    program, client = served
    with program.start("serve", *SMALL, f"artifacts={tmp_path}") as serving:
        try:
            deployment = wait_until(lambda: found(client), 60, "there is a deployment")
            run = asked(
                client, "POST", f"/deployments/{deployment['id']}/create_flow_run",
                parameters={"overrides": [*SMALL, f"artifacts={tmp_path}"]}, state={"type": "SCHEDULED"},
            )  # fmt: skip
            wait_until(lambda: list((tmp_path / "partial").glob("*/*/worker.log")), RUN_S, "a worker runs")
            working = psutil.Process(serving.pid).children(recursive=True)
            assert any("forkserver" in command_of(each.pid) for each in working)
            asked(client, "POST", f"/flow_runs/{run['id']}/set_state", state={"type": "CANCELLING"})
            state = wait_until(lambda: ended(client, run["id"]), 120, "the run ends")
            assert state["type"] == "CANCELLED", state
            assert_gone(working, within_s=30)
            assert tables.runs(Store(tmp_path)) == []
        finally:
            serving.send_signal(signal.SIGINT)
            serving.wait(timeout=60)


def found(client: httpx.Client) -> dict[str, Any]:
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
def test_a_schedule_that_is_none_is_refused_now_and_not_at_night(program: Program, override: str, line: str) -> None:
    ran = program.run("serve", "experiment=nightly", override)
    assert (ran.returncode, ran.stderr) == (2, f"qnnsweep: {line}\n")


def test_without_a_server_of_one_s_own_there_are_no_nights(program: Program) -> None:
    ran = program.run("serve", "experiment=nightly")
    assert ran.returncode == 3
    assert ran.stderr == (
        "qnnsweep: no Prefect server is configured: start one with `prefect server start`, then set "
        "PREFECT_API_URL=http://127.0.0.1:4200/api\n"
    )
