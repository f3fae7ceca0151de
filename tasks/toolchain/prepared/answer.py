"""A module that is started as a program in the environment of a toolchain, and prints its answer as a line of JSON."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from qnnsweep.tasks.errors import EnvironmentUnusable

_ANSWER = "answer: "


class ProbeFailed(EnvironmentUnusable):
    """ExecuTorch cannot compile or run a program with the toolchain. `problem` has QNN's words."""


def answer_of(module: str, what: str, environment: Mapping[str, str], deadline_s: float) -> Any:
    """Start a module as a program, and return the value that it gives to `print_answer`.

    `what`: what the program does, for messages. `environment`: the variables with which a process finds the toolchain.
    Raises ProbeFailed if there is no answer.
    """
    with tempfile.TemporaryDirectory(prefix="qnnsweep-probe-") as folder:
        try:
            ran = subprocess.run(
                [sys.executable, "-m", module],
                env=dict(os.environ) | dict(environment) | {"PYTHONSAFEPATH": "1"},
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProbeFailed(f"{what} did not end within {deadline_s:g} s") from None
    for line in ran.stdout.splitlines():
        if line.startswith(_ANSWER):
            return json.loads(line.removeprefix(_ANSWER))
    raise ProbeFailed(_words(ran.stdout + ran.stderr) or f"{what} ended with exit code {ran.returncode}")


def print_answer(value: Any) -> None:
    """Print the answer of this program."""
    print(_ANSWER + json.dumps(value), flush=True)


def _words(output: str) -> str:
    """Return QNN's first messages about errors; if there are none, the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "[ERROR]" in line]
    return "; ".join(line.rpartition("]:")[2].strip() or line for line in errors[:2]) or next(reversed(lines), "")
