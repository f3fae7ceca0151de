"""`qnnsweep qualify`, with the same release under another name and with a release that needs the bridge."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.program import Program
from tests.toolchain.prepared.conftest import WHEELS
from tests.toolchain.prepared.conftest import user_sdk as user_sdk

pytestmark = pytest.mark.toolchain

OVERRIDES = ("model=digits_cnn", "model.evaluation.count=8", "model.calibration.count=32", "measure.operator_samples=1")
BRIDGED = "qnn-2.51"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The toolchains `same` and `qnn-2.51`: the environment in which qnnsweep finds them, and the artifacts."""

    environment: dict[str, str]
    artifacts: Path


@pytest.fixture(scope="module")
def prepared(
    program: Program, user_sdk: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Prepared:
    root, variables = user_sdk
    environment = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(WHEELS),
        "QNNSWEEP_TOOLCHAINS": str(tmp_path_factory.mktemp("toolchains")),
        "LD_LIBRARY_PATH": variables["LD_LIBRARY_PATH"],
    }
    for words in (["same", f"qnn={root}"], [BRIDGED, "qnn=2.51"]):
        added = program.run("toolchain", "add", *words, **environment)
        assert (added.returncode, added.stderr) == (0, "")
    return Prepared(environment, tmp_path_factory.mktemp("artifacts"))


def qualified(program: Program, prepared: Prepared, after: str, *overrides: str) -> tuple[int, dict[str, Any]]:
    arguments = ("qualify", "default", after, *OVERRIDES, *overrides, "--json", f"artifacts={prepared.artifacts}")
    ran = program.run(*arguments, **prepared.environment)
    return ran.returncode, json.loads(ran.stdout.splitlines()[-1])


def test_the_same_release_under_two_names_gives_no_finding_at_all_after_an_interruption(
    program: Program, prepared: Prepared
) -> None:
    arguments = ("qualify", "default", "same", *OVERRIDES, "--json", f"artifacts={prepared.artifacts}")
    interrupted = replace(program, environment=program.environment | prepared.environment).start(*arguments)
    assert interrupted.stderr is not None
    next(line for line in interrupted.stderr if line.startswith("export "))
    os.killpg(interrupted.pid, signal.SIGINT)
    _, errors = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert errors.endswith("qnnsweep: interrupted; run the same command again to continue\n")

    exit_code, answer = qualified(program, prepared, "same")
    (cell,) = answer["difference"]["cells"]
    assert (exit_code, answer["passed"], cell["changes"]) == (0, True, [])
    assert (answer["equal_outputs"], answer["before"]["versions"]["qnn"]) == (1, answer["after"]["versions"]["qnn"])
    (page,) = prepared.artifacts.glob("runs/*/qualify-default-same.md")
    assert page.read_text().startswith("# same instead of default: nothing got worse, 0 values got better\n")
    assert "## " not in page.read_text()


def test_a_bridged_release_has_equal_outputs_and_a_larger_program(program: Program, prepared: Prepared) -> None:
    exit_code, answer = qualified(program, prepared, BRIDGED)
    (cell,) = answer["difference"]["cells"]
    by_verdict = {verdict: set[str]() for verdict in ("regressed", "undefined")}
    for change in cell["changes"]:
        by_verdict[change["verdict"]].add(change["what"])
    counts = {"spill_bytes", "fill_bytes", "read_total_bytes", "write_total_bytes"}
    assert by_verdict == {"regressed": {"pte_bytes"}, "undefined": counts}
    assert (exit_code, answer["passed"], answer["equal_outputs"]) == (1, False, 1)
    assert [answer[side]["versions"]["bridge"] for side in ("before", "after")] == [None, "device structure"]
    assert answer["after"]["program_bytes"] > answer["before"]["program_bytes"]

    printed = program.run(
        "qualify", "default", BRIDGED, *OVERRIDES, f"artifacts={prepared.artifacts}", **prepared.environment
    )
    (*_, page) = sorted(prepared.artifacts.glob(f"runs/*/qualify-default-{BRIDGED}.md"))
    assert printed.returncode == 1
    assert printed.stdout == page.read_text()
    assert printed.stdout.count("\n| largest memory of a compilation | in the cache | in the cache |\n") == 1


def test_a_cell_that_a_rule_calls_impossible_is_tried_with_both(program: Program, prepared: Prepared) -> None:
    exit_code, answer = qualified(program, prepared, BRIDGED, "scheme=16a16w", "soc=SM8450")
    (tried,) = answer["tried"]
    assert (exit_code, answer["passed"], answer["difference"]["cells"]) == (0, True, [])
    assert tried["reason"] == "16-bit by 16-bit and 2-bit weights need Hexagon v73 or newer"
    assert (tried["passed_before"], tried["passed_after"]) == (False, False)
    assert [tried[side].partition(": ")[0] for side in ("before", "after")] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["default", "default"], "B=default: A and B are the same toolchain; `qnnsweep toolchain list` lists all"),
        (
            ["default", "absent"],
            (
                "toolchain=absent: no such toolchain; one of default, qnn-2.51, same; prepare others with "
                "`qnnsweep toolchain add`"
            ),
        ),
        (
            ["a b", "default"],
            (
                "A=a b: no name of a toolchain: letters, digits and . _ -, at most 60, the first a letter or a digit; "
                "write `qnnsweep qualify A B`"
            ),
        ),
        (
            ["default", "same", "toolchain=same"],
            "toolchain=: the toolchains are the arguments A and B; leave this override out",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    program: Program, prepared: Prepared, words: list[str], message: str
) -> None:
    ran = program.run("qualify", *words, **prepared.environment)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {message}\n")
