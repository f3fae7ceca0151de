"""Kill a sweep with SIGKILL at a given moment and run it again, for the tests and for benchmarks/kills.py."""

from __future__ import annotations

import random
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from qnnsweep.tasks.devices.lock import LEASE_S
from qnnsweep.tasks.storage import tables
from tests.flows.sweep_outputs import TIMES, Row, assert_files_are_complete, assert_no_leftovers, read_table, result_of
from tests.processes import assert_gone, command_of
from tests.program import Program

VICTIMS = ("program", "worker", "server")
"""The program itself, one of the processes that it or its fork server started, or its Prefect server."""
END_TIMEOUT_S = 120.0
POLL_S = 0.01
RERUN_TIMEOUT_S = 2 * LEASE_S + 240.0
"""A device that a killed program held is free when its lease has expired; the rest is work."""
STAGE_TIMES = {"export_s", "quantize_s", "edge_s", "lower_s"}
"""The columns of `cells` with the durations of the toolchain's stages."""

Tables = dict[str, list[Row]]


def run_undisturbed(program: Program, command: list[str], artifacts: Path) -> tuple[Tables, float]:
    """Run the sweep without a kill, and return its tables and its duration in seconds."""
    started = time.monotonic()
    ran = program.run(*command, f"artifacts={artifacts}")
    assert ran.returncode == 0, ran.stderr
    return comparable_tables(ran, artifacts), time.monotonic() - started


def kill_and_rerun(
    program: Program, command: list[str], artifacts: Path, victim: str, after_s: float, generator: random.Random
) -> tuple[str | None, Tables]:
    """Kill `victim` after `after_s`, wait for the end, and run the command again.

    Returns a description of the killed process, None if everything had ended before, and the tables of the second run.
    A victim that does not exist yet is killed as soon as it does. Raises AssertionError for a process that remains, an
    incomplete file, and a second run that does not pass.
    """
    with program.start(*command, f"artifacts={artifacts}") as process:
        time.sleep(after_s)
        processes, killed = _kill(process, victim, generator)
        process.communicate(timeout=END_TIMEOUT_S)
    assert_gone(processes, within_s=30)
    assert_files_are_complete(artifacts)
    ran = program.run(*command, f"artifacts={artifacts}", timeout_s=RERUN_TIMEOUT_S)
    assert ran.returncode == 0, ran.stderr
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)
    return killed, comparable_tables(ran, artifacts)


def _kill(
    process: subprocess.Popen[str], victim: str, generator: random.Random
) -> tuple[list[psutil.Process], str | None]:
    """Kill the victim, and return all processes that the program had started and a description of the killed one."""
    while process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        servers = [child for child in family if "qnnsweep.flows.server.temporary" in command_of(child.pid)]
        others = [child for child in family if child not in servers]
        candidates = {"program": [psutil.Process(process.pid)], "worker": others, "server": servers}[victim]
        with suppress(psutil.NoSuchProcess, IndexError):  # there is no such process yet, or it has just ended
            chosen = generator.choice(candidates)
            command = command_of(chosen.pid)
            chosen.kill()
            return family, f"{victim}: {command[-60:]}"
        time.sleep(POLL_S)
    return [], None


def comparable_tables(ran: subprocess.CompletedProcess[str], artifacts: Path) -> Tables:
    """Return the run's tables without the columns that may differ between two runs."""
    run_id = result_of(ran)["run_id"]
    names = set(tables.TABLES) - {"work", "trends"}  # which depend on what was cached and on earlier runs
    return {name: comparable_rows(name, read_table(artifacts, name, run_id)) for name in names}


def comparable_rows(table: str, rows: list[Row]) -> list[Row]:
    """Return the rows of a table without the columns that may differ between two runs."""
    neutral = {"run_id"} | TIMES.get(table, set()) | (STAGE_TIMES if table == "cells" else set())
    return [{key: _without_digests(value) for key, value in row.items() if key not in neutral} for row in rows]


def _without_digests(value: Any) -> Any:
    """Return a value without digests of files, because no two compilations of one graph are bit-equal."""
    if isinstance(value, list):
        return [_without_digests(item) for item in value]
    return re.sub(r"[0-9a-f]{64}", "…", value) if isinstance(value, str) else value
