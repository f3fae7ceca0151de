"""The command `qnnsweep toolchain` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.program import Program
from tests.toolchain.prepared.conftest import user_sdk as user_sdk

pytestmark = pytest.mark.toolchain


@pytest.mark.slow
def test_a_toolchain_is_added_after_an_interruption_listed_diagnosed_and_removed(
    program: Program, user_sdk: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    root, environment = user_sdk
    variables = {"QNNSWEEP_TOOLCHAINS": str(tmp_path / "t"), "LD_LIBRARY_PATH": environment["LD_LIBRARY_PATH"]}
    partial = tmp_path / "t" / "partial"
    interrupted = replace(program, environment=program.environment | variables).start(
        "toolchain", "add", "mine", f"qnn={root}"
    )
    while not any(partial.glob("*/sdk")):
        assert interrupted.poll() is None, interrupted.communicate()
        time.sleep(0.05)
    os.killpg(interrupted.pid, signal.SIGINT)
    _, errors = interrupted.communicate(timeout=60)
    assert (interrupted.returncode, errors) == (
        130,
        "\nqnnsweep: interrupted; run the same command again to continue\n",
    )
    assert json.loads(program.run("toolchain", "list", "--json", **variables).stdout)["toolchains"] == []

    added = program.run("toolchain", "add", "mine", f"qnn={root}", **variables)
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.startswith("toolchain=mine: QNN v2.")
    assert not any(partial.iterdir())
    assert added.stdout.endswith(f" from {root}\nunverified: no digest is known of {root}\n")

    listed = program.run("toolchain", "list", "--json", **variables)
    contents = json.loads(listed.stdout)
    assert contents["folder"] == variables["QNNSWEEP_TOOLCHAINS"]
    (entry,) = contents["toolchains"]
    build = entry["qnn"]
    assert (entry["name"], entry["bridge"], entry["provisional"]) == ("mine", None, None)
    assert (tmp_path / "t" / "toolchain" / "mine.yaml").read_text() == f"name: mine\nfolder: '{entry['folder']}'\n"
    assert f" mine       {build} " in program.run("toolchain", "list", **variables).stdout

    checks = json.loads(program.run("doctor", "--json", f"--artifacts={tmp_path}", **variables).stdout)["checks"]
    (check,) = (check for check in checks if check["what"] == "toolchain mine")
    assert (check["found"], check["ok"]) == (f"{build} from {root}", True)

    assert program.run("toolchain", "remove", "mine", **variables).returncode == 0
    assert json.loads(program.run("toolchain", "list", "--json", **variables).stdout)["toolchains"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["add", "mine"],
            (
                "write `qnnsweep toolchain add NAME qnn=2.51`, or another of qnn, executorch, passes_off, "
                "operators_skipped"
            ),
        ),
        (
            ["add", "qnn=2.51", "torch=2.0"],
            "torch=2.0: no such key; one of qnn, executorch, passes_off, operators_skipped",
        ),
        (["remove", "absent"], "NAME=absent: no such toolchain; there are none"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(program: Program, words: list[str], message: str) -> None:
    ran = program.run("toolchain", *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {message}\n")
