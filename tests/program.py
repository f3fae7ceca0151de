"""The program `qnnsweep` as a user starts it: in a process of its own, with a Prefect home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from qnnsweep.flows.cli.schemas import schemas
from tests.flows.cluster import client_environment, prefect_server
from tests.warm import WarmPython

DEADLINE_S = 600
INHERITED = ("HOME", "LANG", "PATH", "PYTHONPATH", "QNN_SDK_ROOT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The program `qnnsweep`, with a working directory and an environment that nothing else uses."""

    folder: Path
    environment: dict[str, str]
    warm: WarmPython | None = None
    """Runs lines of Python in forks of a process that has this environment. None: each run is a new process."""

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
        """Run the program to its end. What it prints with --json must have the form of the published schema."""
        ran = self._completed(self._argv(arguments), timeout_s=timeout_s, **environment)
        if "--json" in arguments and ran.stdout:
            check_json(ran.stdout)
        return ran

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
        variables = self.environment | environment
        if self.warm is not None and self.warm.has(variables) and argv[:2] == [sys.executable, "-c"]:
            return self.warm.run(self.folder, variables, argv[2], argv[3:], timeout_s)
        return subprocess.run(
            argv, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def _argv(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", "from qnnsweep.flows.cli.main import main; main()", *arguments]


def check_json(stdout: str) -> None:
    """Check the last line of a command's output with the schema that its key `schema` names."""
    printed = json.loads(stdout.splitlines()[-1], parse_constant=_refuse)
    jsonschema.validate(printed, _schemas()[printed["schema"]], cls=jsonschema.Draft202012Validator)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@cache
def _schemas() -> dict[str, dict[str, Any]]:
    return {schema["properties"]["schema"]["const"]: schema for schema in schemas().values()}


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
def with_server(
    program: Program, variables: Mapping[str, str] | None = None
) -> Generator[tuple[Program, httpx.Client]]:
    """Start a Prefect server in the program's home; yield the program that uses it, and a client of the server.

    `variables`: further ones of the server.
    """
    home = Path(program.environment["PREFECT_HOME"])
    home.mkdir(parents=True)
    with prefect_server(home, home / "log", variables=variables) as client:
        yield replace(program, environment=program.environment | client_environment(client)), client
