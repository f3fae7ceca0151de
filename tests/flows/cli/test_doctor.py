"""What `qnnsweep doctor` finds on this machine, and what it advises where something is missing."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.program import Program

pytestmark = pytest.mark.toolchain

NEEDED = ["Python", "processor", "torch", "executorch", "torchao", "prefect", "hydra-core", "QNN", "backends"]


def checks(stdout: str) -> dict[str, dict[str, Any]]:
    return {check["what"]: check for check in json.loads(stdout.splitlines()[-1])["checks"]}


def test_a_machine_that_has_everything_is_healthy(program: Program, tmp_path: Path) -> None:
    ran = program.run("doctor", "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (0, "")
    found = checks(ran.stdout)
    assert [what for what in NEEDED if not (found[what]["needed"] and found[what]["ok"])] == []
    assert found["torch"]["found"] == metadata.version("torch")
    version = metadata.version("onnxruntime-qnn")
    assert found["QNN"]["found"].startswith("v2.")
    assert found["QNN"]["found"].endswith(f" from onnxruntime-qnn {version}")
    assert {"QnnBackend", "XnnpackBackend"} <= set(found["backends"]["found"].split(", "))
    assert all(check["remedy"] for check in found.values() if not check["ok"])


def test_people_get_a_table_with_what_to_do(program: Program, tmp_path: Path) -> None:
    ran = program.run("doctor", f"--artifacts={tmp_path}")
    assert ran.returncode == 0
    (line,) = (line for line in ran.stdout.splitlines() if " QNN " in line)
    assert line.split()[:2] == ["✓", "QNN"]


def test_a_wrong_qnn_folder_is_exit_code_3_and_a_remedy(program: Program, tmp_path: Path) -> None:
    ran = program.run("doctor", "--json", f"--artifacts={tmp_path}", QNN_SDK_ROOT="/nonexistent")
    assert ran.returncode == 3
    assert checks(ran.stdout)["QNN"] == {
        "what": "QNN",
        "found": ("QNN_SDK_ROOT=/nonexistent: no libQnnHtp.so, libQnnSystem.so in /nonexistent/lib/x86_64-linux-clang"),
        "ok": False,
        "needed": True,
        "remedy": (
            "point it at an unpacked Qualcomm AI Engine Direct SDK, or unset it to use the onnxruntime-qnn wheel"
        ),
    }


def test_an_unusable_artifacts_folder_is_exit_code_3_and_a_remedy(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = program.run("doctor", "--json", f"--artifacts={tmp_path / 'file'}")
    assert ran.returncode == 3
    found = checks(ran.stdout)["artifacts"]
    assert not found["ok"]
    assert found["remedy"]
