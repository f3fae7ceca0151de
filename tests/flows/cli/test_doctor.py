"""The checks of `qnnsweep doctor` on this machine, and its remedies."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.tasks.toolchain.backends.qnn import doctor as qnn_doctor
from tests.program import Program

pytestmark = pytest.mark.toolchain

NEEDED = ["Python", "processor", "torch", "executorch", "torchao", "prefect", "hydra-core", "QNN", "backends"]


def checks(stdout: str) -> dict[str, dict[str, Any]]:
    return {check["what"]: check for check in json.loads(stdout.splitlines()[-1])["checks"]}


def test_all_checks_pass_on_a_complete_machine(program: Program, tmp_path: Path) -> None:
    ran = program.run("doctor", "--json", f"--artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (0, "")
    results = checks(ran.stdout)
    assert [what for what in NEEDED if not (results[what]["needed"] and results[what]["ok"])] == []
    assert results["torch"]["found"] == metadata.version("torch")
    version = metadata.version("onnxruntime-qnn")
    assert results["QNN"]["found"].startswith("v2.")
    assert results["QNN"]["found"].endswith(f" from onnxruntime-qnn {version}")
    assert results["Prefect server"]["found"] == "none: each run starts a temporary server"
    assert {"QnnBackend", "XnnpackBackend"} <= set(results["backends"]["found"].split(", "))
    assert all(check["remedy"] for check in results.values() if not check["ok"])


def test_the_backends_are_listed_without_the_import_of_the_compiler() -> None:
    argv = [sys.executable, "-X", "importtime", "-c", qnn_doctor.LIST_BACKENDS]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("backends: ")
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert {"torch", "executorch.exir", "torchao"} & imported == {"torch"}


def test_the_table_shows_each_check_and_its_remedy(program: Program, tmp_path: Path) -> None:
    ran = program.run("doctor", f"--artifacts={tmp_path}", QNN_SDK_ROOT="/nonexistent")
    assert ran.returncode == 3
    marks = {words[1]: words[0] for words in map(str.split, ran.stdout.splitlines()) if len(words) > 1}
    assert (marks["Python"], marks["torch"], marks["QNN"]) == ("✓", "✓", "✗")
    assert " point it at an unpacked " in ran.stdout


def test_a_terminal_that_is_not_utf_8_gets_the_table_too(program: Program, tmp_path: Path) -> None:
    ran = program.run("doctor", f"--artifacts={tmp_path}", PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "|? |torch " in ran.stdout


def test_a_wrong_qnn_folder_gives_exit_code_3_and_a_remedy(program: Program, tmp_path: Path) -> None:
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


def test_an_unusable_artifacts_folder_gives_exit_code_3_and_a_remedy(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = program.run("doctor", "--json", f"--artifacts={tmp_path / 'file'}")
    assert ran.returncode == 3
    check = checks(ran.stdout)["artifacts"]
    assert not check["ok"]
    assert check["remedy"]
