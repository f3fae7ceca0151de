"""The program `qnnsweep` as a user starts it: in a process of its own, with a Prefect home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from tests.flows.cluster import client_environment, prefect_server

DEADLINE_S = 600
INHERITED = ("HOME", "LANG", "PATH", "PYTHONPATH", "QNN_SDK_ROOT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The program `qnnsweep`, with a working directory and an environment that nothing else uses."""

    folder: Path
    environment: dict[str, str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program in a session of its own, as a terminal does."""
        return subprocess.Popen(
            self._argv(arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, timeout_s: float = DEADLINE_S, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        return self._completed(self._argv(arguments), timeout_s=timeout_s, **environment)

    def python(self, lines: str) -> subprocess.CompletedProcess[str]:
        """Run lines of Python in the same folder and environment."""
        return self._completed([sys.executable, "-c", lines])

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell whose `python` is this one."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{self.environment['PATH']}"
        return self._completed(["sh", "-c", line], PATH=path)

    def _completed(
        self, argv: Sequence[str], *, timeout_s: float = DEADLINE_S, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _argv(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", "from qnnsweep.flows.cli.main import main; main()", *arguments]


def new_program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Return the program with a new home and a new working directory."""
    return program_at(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("working"))


def program_at(home: Path, folder: Path) -> Program:
    """Return the program with its Prefect home in `home` and the working directory `folder`."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    changed = {
        "PREFECT_HOME": str(home / "prefect"),
        "QNNSWEEP_TOOLCHAINS": str(home / "toolchains"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    return Program(folder=folder, environment=inherited | changed)


@contextmanager
def with_server(program: Program) -> Generator[tuple[Program, httpx.Client]]:
    """Start a Prefect server in the program's home; yield the program that uses it, and a client of the server."""
    home = Path(program.environment["PREFECT_HOME"])
    home.mkdir(parents=True)
    with prefect_server(home, home / "log") as client:
        yield replace(program, environment=program.environment | client_environment(client)), client
