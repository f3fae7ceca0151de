"""`qnnsweep serve` with a schedule of every minute, a real Prefect server and real time."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.cli.test_doctor import checks
from tests.flows.cli.test_serve import SMALL, api_call, deployment_of
from tests.flows.cluster import wait_until
from tests.program import Program, new_program, with_server

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

BROKEN = "sqlalchemy==2.1.9"
"""A version with which each loop of the scheduler of Prefect 3.8.8 fails."""
SWEEP_S = 600
"""How long a sweep may take, and how long the wait for the next minute."""


@contextmanager
def serving(program: Program, *overrides: str) -> Generator[tuple[subprocess.Popen[str], list[str]]]:
    """Run `serve`. Yield its process and the lines of its stderr, to which it adds."""
    lines: list[str] = []
    with program.start("serve", *overrides) as process:
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: lines.extend(map(str.rstrip, process.stderr or ())))
        reader.start()
        try:
            yield process, lines
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
            reader.join()


def started(client: httpx.Client, deployment: str) -> list[dict[str, Any]]:
    """Return the runs that the server's scheduler made and that have started, the first one first."""
    runs = api_call(
        client, "POST", "/flow_runs/filter", deployments={"id": {"any_": [deployment]}}, sort="EXPECTED_START_TIME_ASC"
    )
    return [run for run in runs if run["auto_scheduled"] and run["start_time"] is not None]


@pytest.fixture
def every_minute_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, httpx.Client]]:
    """The program of a user whose server no other test uses: its only deployment has a schedule of every minute."""
    with with_server(new_program(tmp_path_factory)) as served:
        yield served


def test_each_minute_starts_a_sweep_and_one_that_crashes_or_is_late_is_said(
    every_minute_program: tuple[Program, httpx.Client], tmp_path: Path
) -> None:
    program, client = every_minute_program
    every_minute = [*SMALL, f"artifacts={tmp_path}", "schedule.cron='* * * * *'", "schedule.timezone=Europe/Berlin"]
    with serving(program, *every_minute) as (process, said):

        def wait_for(words: str, times: int = 1) -> None:
            wait_until(lambda: sum(words in line for line in said) >= times, SWEEP_S, f"{words}: {times}")

        wait_for("the next sweep starts at ")
        wait_for("a sweep has started: ")
        (sweep,) = wait_until(lambda: psutil.Process(process.pid).children(), 60, "the first sweep has a process")
        sweep.suspend()
        wait_for("a sweep is late, since ")
        sweep.kill()
        wait_for("a sweep has ended after ")
        wait_for(" s: Completed; the next sweep starts at ", times=3)
        runs = started(client, deployment_of(client)["id"])
    assert [run["state_type"] for run in runs[:4]] == ["CRASHED", *["COMPLETED"] * 3]
    assert len({run["expected_start_time"] for run in runs}) == len(runs)
    assert len(tables.runs(Store(tmp_path))) >= 3
    late = next(line for line in said if "late" in line)
    assert re.fullmatch(r"\S+ \S+ a sweep is late, since \d\d:\d\d: it starts when the sweep before it has ended", late)
    assert re.search(
        r"ended after \d+ s: Crashed; the next sweep starts at \S+ \d\d:\d\d CES?T$", "\n".join(said), re.M
    )


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, str]]:
    """The program of a user whose server has the broken version, and the folder of this version."""
    folder = tmp_path_factory.mktemp("broken")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), BROKEN]
    subprocess.run(install, check=True)
    with with_server(new_program(tmp_path_factory), {"PYTHONPATH": str(folder)}) as (program, _):
        loops = {"PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "10"}
        yield replace(program, environment=program.environment | loops), str(folder)


def test_serve_and_doctor_say_that_a_server_schedules_nothing(broken: tuple[Program, str], tmp_path: Path) -> None:
    program, folder = broken
    ran = program.run("serve", "experiment=nightly", f"artifacts={tmp_path}")
    assert ran.returncode == 3
    problem = "the server has scheduled no run within 15 s, so it starts no sweep"
    remedy = (
        "read the log of the server; Prefect 3.8 needs SQLAlchemy below 2.1: install the versions of constraints.txt "
        "where the server runs, and start the server again"
    )
    url = program.environment["PREFECT_API_URL"]
    assert ran.stderr.splitlines()[-1] == f"qnnsweep: PREFECT_API_URL={url}: {problem}; {remedy}"
    there = checks(program.run("doctor", "--json", f"--artifacts={tmp_path}").stdout)["schedules"]
    assert (there["ok"], there["found"], there["remedy"]) == (False, f"PREFECT_API_URL={url}: {problem}", remedy)
    path = f"{folder}:{program.environment.get('PYTHONPATH', '')}"
    here = checks(program.run("doctor", "--json", f"--artifacts={tmp_path}", PYTHONPATH=path).stdout)["schedules"]
    assert (here["ok"], here["remedy"]) == (False, remedy)
    assert here["found"] == (
        "prefect 3.8.8, SQLAlchemy 2.1.9: a server with these versions starts no sweep: "
        "sqlalchemy.exc.InvalidRequestError: Can't evaluate bulk DML statement; please supply a bulk_dml decorated "
        "function"
    )
