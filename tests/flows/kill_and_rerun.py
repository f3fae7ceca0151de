"""Killing a sweep with -9 wherever it hurts, and running it again: for the tests, and by the score for a benchmark."""

from __future__ import annotations

import random
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.server.leases import LEASE_S
from tasks.storage import tables
from tests.processes import assert_gone, command_of

from .conftest import Program
from .sweep_outputs import TIMES, Row, assert_files_are_complete, assert_no_leftovers, read_table, result_of

VICTIMS = ("worker", "child", "server")
"""The program itself, one of the processes that it or its fork server started, its Prefect server."""
ENDS_S = 120.0
LOOK_EVERY_S = 0.01
AGAIN_S = 2 * LEASE_S + 240.0
"""A device that a killed program held is free when its lease has run out; the rest is work."""
MAKING = {"export_s", "quantize_s", "edge_s", "lower_s"}
"""Of `cells`, the seconds that a run from nothing takes."""

Tables = dict[str, list[Row]]


def run_undisturbed(program: Program, command: list[str], artifacts: Path) -> tuple[Tables, float]:
    """What the sweep leaves when nobody disturbs it, and how long it takes."""
    began = time.monotonic()
    ran = program.run(*command, f"artifacts={artifacts}")
    assert ran.returncode == 0, ran.stderr
    return of(ran, artifacts), time.monotonic() - began


def kill_and_rerun(
    program: Program, command: list[str], artifacts: Path, victim: str, after_s: float, chance: random.Random
) -> tuple[str | None, Tables]:
    """Kill `victim` that long after the start, let the rest end, run the same again: what was hit, and the tables.

    One that is not there yet is killed as soon as it is; None was hit where all had ended before.
    Raises AssertionError for a process that stays, a file that is half-written, and a second run that does not pass.
    """
    with program.start(*command, f"artifacts={artifacts}") as process:
        time.sleep(after_s)
        started, hit = _hit(process, victim, chance)
        process.communicate(timeout=ENDS_S)
    assert_gone(started, within_s=30)
    assert_files_are_complete(artifacts)
    ran = program.run(*command, f"artifacts={artifacts}", timeout_s=AGAIN_S)
    assert ran.returncode == 0, ran.stderr
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)
    return hit, of(ran, artifacts)


def _hit(process: subprocess.Popen[str], victim: str, chance: random.Random) -> tuple[list[psutil.Process], str | None]:
    """All that the program had started, and what was killed of it."""
    while process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        servers = [each for each in family if "flows.server.temporary" in command_of(each.pid)]
        others = [each for each in family if each not in servers and "resource_tracker" not in command_of(each.pid)]
        chosen = {"worker": [psutil.Process(process.pid)], "child": others, "server": servers}[victim]
        with suppress(psutil.NoSuchProcess, IndexError):  # there is none, or it was faster
            one = chance.choice(chosen)
            said = command_of(one.pid)
            one.kill()
            return family, f"{victim}: {said[-60:]}"
        time.sleep(LOOK_EVERY_S)
    return [], None


def of(ran: subprocess.CompletedProcess[str], artifacts: Path) -> Tables:
    """The run's tables without what may differ between two runs."""
    run_id = result_of(ran)["run_id"]
    found: Tables = {}
    for name in set(tables.TABLES) - {"work", "trends"}:  # which say what was not done again, and what was there before
        neutral = {"run_id"} | TIMES.get(name, set()) | (MAKING if name == "cells" else set())
        found[name] = [
            {key: _nameless(value) for key, value in row.items() if key not in neutral}
            for row in read_table(artifacts, name, run_id)
        ]
    return found


def _nameless(value: Any) -> Any:
    """Without digests of files: no two compilations of one graph are equal to the bit."""
    if isinstance(value, list):
        return [_nameless(each) for each in value]
    return re.sub(r"[0-9a-f]{64}", "…", value) if isinstance(value, str) else value
