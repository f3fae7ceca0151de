"""The runs of a reproducer, each in a process of its own that finds ExecuTorch and QNN but not qnnsweep's variables."""

import os
import subprocess
import sys
from pathlib import Path

from qnnsweep.tasks.repro.folder import SCRIPT

_DEADLINE_S = 1800
_LONGEST = 240  # characters of a failure: PyTorch prints whole graphs in one line
RECORDING = ("saver_output.c", "params.bin")


def run_script(folder: Path, *options: str) -> tuple[float | None, str]:
    """Run repro.py. Return the number that it printed and an empty text, or None and the end of its log."""
    ran = _run(folder, *options)
    if isinstance(ran, str):
        return None, ran
    try:
        return float(ran.stdout), ""
    except ValueError:
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "[ERROR]" in line]
        line = (errors or lines or [f"exit code {ran.returncode}"])[-1]
        return None, line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


def record(folder: Path) -> str | None:
    """Let QNN record its own calls. Return None, or why there is no recording.

    QNN writes into the working directory, and the process ends without a program.
    """
    ran = _run(folder, "--record")
    missing = [name for name in RECORDING if not (folder / "saver_output" / name).is_file()]
    if not missing:
        return None
    return ran if isinstance(ran, str) else f"QNN's Saver library wrote no {' and no '.join(missing)}"


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str] | str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        return subprocess.run(
            [sys.executable, "-P", SCRIPT, *options],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_DEADLINE_S} s"
