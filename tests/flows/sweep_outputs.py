"""The outputs of a sweep: the JSON that it prints, its tables and the completeness of its files."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]

TIMES = {
    "cells": {
        "execute_s",
        "latency_p50_ms",
        "log",
        "measured_run",
        "sent_bytes",
        "started",
    },  # the log of a runner that failed has times in it
    "profile": {"p10", "p50", "p90", "mean", "minimum", "maximum", "raw"},
    "modules": {"p10", "p50", "p90", "mean", "minimum", "maximum", "own_mean", "share"},
    "commands": {"seconds"},
}
"""By table, the columns in which two runs of one command may differ although they have the same programs."""


def result_of(ran: subprocess.CompletedProcess[str]) -> Row:
    """Return the object that a command with `--json` prints as its last line."""
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def passed_result_of(ran: subprocess.CompletedProcess[str]) -> Row:
    """Return the same for a command that must have exited with 0."""
    assert ran.returncode == 0, ran.stderr
    return result_of(ran)


def read_table(artifacts: Path, name: str, run_id: str) -> list[Row]:
    """Return the rows of a run's table as Python values: None for null, int for integers."""
    return pq.read_table(artifacts / "tables" / name / f"run={run_id}" / "part.parquet").to_pylist()


def assert_files_are_complete(artifacts: Path) -> int:
    """Assert that every file under its final name is complete, and return the number of blobs."""
    blobs = [path for path in (artifacts / "blobs").rglob("*") if path.is_file()]
    blobs += (artifacts / "devices").glob("local/blobs/*")
    assert [path for path in blobs if hashlib.sha256(path.read_bytes()).hexdigest() != path.name] == []
    for path in [*artifacts.glob("tables/**/*.parquet"), *artifacts.glob("results/records/*")]:
        pq.read_table(path)
    return len(blobs)


def assert_no_leftovers(artifacts: Path) -> None:
    """Assert that no partial file and no lease of the local device is left."""
    assert list((artifacts / "partial").iterdir()) == []
    assert list((artifacts / "devices" / "local" / "leases").iterdir()) == []
