"""What a sweep said and what it left: its last line, its tables, and whether every file is whole."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]

TIMES = {
    "cells": {"execute_s", "latency_p50_ms", "log", "measured_run", "sent_bytes"},  # a log says when its runner failed
    "profile": {"p10", "p50", "p90", "mean", "minimum", "maximum", "raw"},
    "modules": {"p10", "p50", "p90", "mean", "minimum", "maximum", "own_mean", "share"},
    "commands": {"seconds"},
}
"""What two runs of one command may differ in, by table, where both have the same programs."""


def result_of(ran: subprocess.CompletedProcess[str]) -> Row:
    """The object that `--json` ends with."""
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def passed_result_of(ran: subprocess.CompletedProcess[str]) -> Row:
    """The same, of a command that ended with 0."""
    assert ran.returncode == 0, ran.stderr
    return result_of(ran)


def read_table(artifacts: Path, name: str, run_id: str) -> list[Row]:
    """Rows as Python has them: None for null, whole numbers whole."""
    return pq.read_table(artifacts / "tables" / name / f"run={run_id}" / "part.parquet").to_pylist()


def assert_files_are_complete(artifacts: Path) -> int:
    """Every file under its final name is complete. How many blobs there are."""
    blobs = [path for path in (artifacts / "blobs").rglob("*") if path.is_file()]
    blobs += (artifacts / "devices").glob("local/blobs/*")
    assert [path for path in blobs if hashlib.sha256(path.read_bytes()).hexdigest() != path.name] == []
    for path in [*artifacts.glob("tables/**/*.parquet"), *artifacts.glob("results/records/*")]:
        pq.read_table(path)
    return len(blobs)


def assert_no_leftovers(artifacts: Path) -> None:
    """No part of a file, and no lease of the local device, is left."""
    assert list((artifacts / "partial").iterdir()) == []
    assert list((artifacts / "devices" / "local" / "leases").iterdir()) == []
