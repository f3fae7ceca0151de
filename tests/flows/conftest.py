"""The program as a user starts it: in a process of its own, with a Prefect of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from .cluster import address, prefect_server

DEADLINE_S = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """`qnnsweep`, in a working directory and an environment that nobody else uses."""

    folder: Path
    environment: dict[str, str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in a session of its own, as a terminal does."""
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
        return self._done(self._argv(arguments), timeout_s=timeout_s, **environment)

    def python(self, lines: str) -> subprocess.CompletedProcess[str]:
        """Lines of Python in the same folder and environment."""
        return self._done([sys.executable, "-c", lines])

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """A line of a shell whose `python` is this one."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{self.environment['PATH']}"
        return self._done(["sh", "-c", line], PATH=path)

    def _done(
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
        return [sys.executable, "-c", "from flows.cli.main import main; main()", *arguments]


def with_a_home_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return at_home(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("working"))


def at_home(home: Path, folder: Path) -> Program:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "QNN_SDK_ROOT") if name in os.environ}
    own = {"PREFECT_HOME": str(home / "prefect"), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return Program(folder=folder, environment=kept | own)


@contextmanager
def with_a_server(made: Program) -> Generator[tuple[Program, httpx.Client]]:
    """That program with a Prefect server in its home, and a way to ask that server."""
    home = Path(made.environment["PREFECT_HOME"])
    home.mkdir(parents=True)
    with prefect_server(home, home / "log") as client:
        yield replace(made, environment=made.environment | {"PREFECT_API_URL": address(client)}), client


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return with_a_home_of_its_own(tmp_path_factory)


@pytest.fixture(scope="session")
def served_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program of one who keeps a Prefect server: none of its runs starts a temporary one, which takes a while."""
    with with_a_server(with_a_home_of_its_own(tmp_path_factory)) as (served, _):
        yield served
