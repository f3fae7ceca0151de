"""A secret in an override reaches the device, but is in no byte of the artifacts, Prefect's files or the output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.flows.sweep_outputs import passed_result_of
from tests.program import Program

pytestmark = pytest.mark.slow

SECRET = "correct-horse-battery-staple"
SMALL = ("model=digits_cnn", "model.evaluation.count=4", "scheme=fp32", "backend=portable", "soc=SM8650")


def files_with_secret(*folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.toolchain
@pytest.mark.parametrize("token", [SECRET, "${oc.env:DEVICE_TOKEN}"], ids=["text", "interpolation"])
def test_a_secret_reaches_the_device_and_is_stored_nowhere(program: Program, tmp_path: Path, token: str) -> None:
    received, python = tmp_path / "received", tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ -z "$TOKEN" ] || printf %s "$TOKEN" >{received}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    artifacts = tmp_path / "artifacts"
    secret = f"+device.environment.TOKEN='{token}'"
    ran = program.run(
        "run", "--json", *SMALL, f"artifacts={artifacts}", f"device.python={python}", secret, DEVICE_TOKEN=SECRET
    )
    result = passed_result_of(ran)
    assert received.read_text() == SECRET
    assert SECRET not in ran.stdout + ran.stderr
    assert files_with_secret(artifacts, Path(program.environment["PREFECT_HOME"])) == []
    command = json.loads((artifacts / "runs" / result["run_id"] / "run.json").read_text())["command"]
    assert command[-1] == (secret if token != SECRET else "+device.environment.TOKEN=***")


@pytest.mark.parametrize("command", [("serve",), ("run", "--pool=qnnsweep")], ids=" ".join)
def test_a_secret_that_a_prefect_server_would_store_is_refused(program: Program, command: tuple[str, ...]) -> None:
    ran = program.run(*command, *SMALL, f"+device.environment.TOKEN={SECRET}")
    assert ran.returncode == 2
    assert ran.stderr == (
        "qnnsweep: +device.environment.TOKEN: the Prefect server would store this secret; write ${oc.env:VARIABLE} and "
        "set the environment variable wherever the sweep runs\n"
    )
