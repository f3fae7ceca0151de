"""Everything that the store reports as stored survives a power cut: strace shows what was synced before the report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CALLS = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "fsync", "fdatasync", "write")

# Prints a line after each step.
STEPS = """
import os, sys
from pathlib import Path
from qnnsweep.tasks.storage import lock, tables
from qnnsweep.tasks.storage.store import Store

store = Store(Path(sys.argv[1]))
def step(name):
    os.write(1, f"stored {name}\\n".encode())

if sys.argv[2] == "locked":
    with lock.shared(store):
        step("locked")
if sys.argv[2] == "scratch":
    with store.scratch("lower"):
        step("scratch")
store.check_writable()
step("checked")
blob = store.put_bytes(b"program")
step("blob")
row = dict.fromkeys(tables.schema_of("cells").names) | {"run_id": "1"}
tables.write(store, "1", "cells", [row])
step("table")
tables.write(store, "1", "cells", [row, row])
step("other rows")
store.files.write("results/records/lower-1.parquet", b"record")
step("result")
store.link_named("runs/1/files/toy/8a8w", {"program.pte": blob, "model_explorer/edge.json": blob})
step("links")
store.link_named("runs/1/files/toy/8a8w", {"program.pte": store.put_bytes(b"other")})
step("replaced link")
"""


@pytest.mark.parametrize("first", ["checked", "locked", "scratch"])
def test_all_new_names_are_synced_before_they_are_reported(tmp_path: Path, first: str) -> None:
    trace, root = tmp_path / "trace", tmp_path / "new" / "artifacts"
    calls = ",".join(f"?{call}" for call in CALLS)  # a call that this processor does not have is ignored
    strace = ["strace", "-f", "-y", "-s", "100", "-o", str(trace), f"--trace={calls}"]
    argv = [*strace, sys.executable, "-c", STEPS, str(root), first]
    ran = subprocess.run(argv, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    reported = ran.stdout.splitlines()
    steps, new = 0, 0
    unsynced: set[Path] = set()
    written: set[str] = set()
    """The names of synced files and folders."""
    for line in trace.read_text().splitlines():
        call, paths = re.sub(r"^\d+ +", "", line).partition("(")[0], re.findall(r'"([^"]*)"', line)
        if not line.endswith("= 0") and call != "write":
            continue
        if call.startswith(("mkdir", "rename", "link")):
            path = Path(paths[-1])
            written |= {paths[-1]} if paths[0] in written else set()
            if path.is_relative_to(root.parent) and root / "partial" not in path.parents:
                assert call.startswith("mkdir") or paths[0] in written, line
                unsynced.add(path.parent)
                new += 1
        elif call in ("fsync", "fdatasync"):
            (synced,) = re.findall(r"<([^>]*)>", line)
            written.add(synced)
            unsynced.discard(Path(synced))
        elif "stored " in line:
            assert unsynced == set(), reported[steps]
            steps += 1
    assert steps == len(reported)
    assert new > 20
