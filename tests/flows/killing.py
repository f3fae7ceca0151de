"""Killing a sweep with -9 wherever it hurts, and running it again: for the tests, and by the score for a benchmark."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from flows.leases import LEASE_S
from tasks.storage import tables

from .conftest import Program

VICTIMS = ("worker", "child", "server")
"""The program itself, one of the processes that it or its fork server started, its Prefect server."""
ENDS_S = 120.0
AGAIN_S = 2 * LEASE_S + 240.0
"""A device that a killed program held is free when its lease has run out; the rest is work."""
TIMES = {
    "cells": {
        "export_s",
        "quantize_s",
        "edge_s",
        "lower_s",
        "execute_s",
        "latency_p50_ms",
        "sent_bytes",
        "log",
        "measured_run",
    },
    "profile": {"p10", "p50", "p90", "mean", "minimum", "maximum", "raw"},
    "modules": {"p10", "p50", "p90", "mean", "minimum", "maximum", "own_mean", "share"},
    "commands": {"seconds"},
}
"""What two runs from nothing may differ in. Logs name processes."""

Tables = dict[str, list[dict[str, Any]]]


def undisturbed(program: Program, command: list[str], artifacts: Path) -> tuple[Tables, float]:
    """What the sweep leaves when nobody disturbs it, and how long it takes."""
    began = time.monotonic()
    ran = program.run(*command, f"artifacts={artifacts}")
    assert ran.returncode == 0, ran.stderr
    return of(ran, artifacts), time.monotonic() - began


def killed_and_run_again(
    program: Program, command: list[str], artifacts: Path, victim: str, after_s: float, chance: random.Random
) -> tuple[str, Tables]:
    """Kill `victim` that long after the start, let the rest end, run the same again: what was hit, and the tables.

    Raises AssertionError for a process that stays, a file that is half-written, and a second run that does not pass.
    """
    with program.start(*command, f"artifacts={artifacts}") as process:
        time.sleep(after_s)
        started, hit = _hit(process, victim, chance)
        process.communicate(timeout=ENDS_S)
    _, alive = psutil.wait_procs(started, timeout=30)
    assert [each.cmdline() for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    assert_whole(artifacts)
    ran = program.run(*command, f"artifacts={artifacts}", timeout_s=AGAIN_S)
    assert ran.returncode == 0, ran.stderr
    assert_whole(artifacts)
    assert list((artifacts / "partial").iterdir()) == []
    assert list((artifacts / "devices" / "local" / "leases").iterdir()) == []
    return hit, of(ran, artifacts)


def _hit(process: subprocess.Popen[str], victim: str, chance: random.Random) -> tuple[list[psutil.Process], str]:
    """All that the program had started, and what was killed of it."""
    if process.poll() is not None:
        return [], "nothing, it had ended"
    family = psutil.Process(process.pid).children(recursive=True)
    servers = [each for each in family if "flows.server" in _command(each)]
    others = [each for each in family if each not in servers and "resource_tracker" not in _command(each)]
    chosen = {"worker": [psutil.Process(process.pid)], "child": others, "server": servers}[victim]
    if not chosen:
        return family, f"no {victim} yet"
    one = chance.choice(chosen)
    said = _command(one)
    one.kill()
    return family, f"{victim}: {said[-60:]}"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return "gone already"


def of(ran: subprocess.CompletedProcess[str], artifacts: Path) -> Tables:
    """The run's tables without what may differ between two runs."""
    run_id = json.loads(ran.stdout.splitlines()[-1])["run_id"]
    found: Tables = {}
    for name in set(tables.TABLES) - {"work", "trends"}:  # which say what was not done again, and what was there before
        neutral = {"run_id"} | TIMES.get(name, set())
        rows = pq.read_table(artifacts / "tables" / name / f"run={run_id}" / "part.parquet").to_pylist()
        found[name] = [{key: _nameless(value) for key, value in row.items() if key not in neutral} for row in rows]
    return found


def _nameless(value: Any) -> Any:
    """Without digests of files: no two compilations of one graph are equal to the bit."""
    if isinstance(value, list):
        return [_nameless(each) for each in value]
    return re.sub(r"[0-9a-f]{64}", "…", value) if isinstance(value, str) else value


def assert_whole(artifacts: Path) -> None:
    """Every file under its final name is complete."""
    blobs = [path for path in (artifacts / "blobs").rglob("*") if path.is_file()]
    blobs += (artifacts / "devices").glob("local/blobs/*")
    assert [path for path in blobs if hashlib.sha256(path.read_bytes()).hexdigest() != path.name] == []
    for path in [*artifacts.glob("tables/**/*.parquet"), *artifacts.glob("results/records/*")]:
        pq.read_table(path)
