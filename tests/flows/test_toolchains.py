"""A sweep with three toolchains: the default, the same release under another name, and a release with the bridge.

`qnnsweep qualify` then compares these toolchains, with the programs that the sweep has compiled.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.record import folder_of, read_record
from tests.program import Program
from tests.toolchain.prepared.conftest import WHEELS
from tests.toolchain.prepared.conftest import user_sdk as user_sdk

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

OVERRIDES = (
    "model=digits_cnn",
    "model.evaluation.count=8",
    "model.calibration.count=32",
    "measure.operator_samples=1",
    "measure.cures=0",
)
RELEASE = "2.51"
BRIDGED = f"qnn-{RELEASE}"
NAMES = {"run_id", "toolchain"}
PER_COMPILATION = {"log", "qnn_files", "sent_bytes"}
"""Columns that differ between two cells of the same release: its name, and which blobs the device had already."""


class Sweep:
    """The tables of the sweep, its toolchains, and the program of a user that has these toolchains."""

    def __init__(self, folder: Path, toolchains: Path, output: str, program: Program) -> None:
        self.store = Store.at(str(folder))
        (self.run,) = tables.runs(self.store)
        self.toolchains = toolchains
        self.output = output
        self.program = program

    @property
    def folder(self) -> Path:
        return self.store.root / "runs" / self.run

    def qualify(self, *words: str) -> list[str]:
        return ["qualify", "default", *words, *OVERRIDES, f"artifacts={self.store.root}"]

    def qualified(self, *words: str) -> tuple[int, dict[str, Any]]:
        ran = self.program.run(*self.qualify(*words), "--json")
        return ran.returncode, json.loads(ran.stdout.splitlines()[-1])

    def rows(self, table: str, toolchain: str) -> list[dict[str, Any]]:
        return [row for row in tables.rows(self.store, table, self.run) if row["toolchain"] == toolchain]


@pytest.fixture(scope="module")
def sweep(
    served_program: Program, user_sdk: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Sweep:
    root, variables = user_sdk
    toolchains, artifacts = tmp_path_factory.mktemp("toolchains"), tmp_path_factory.mktemp("artifacts")
    environment = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(WHEELS),
        "QNNSWEEP_TOOLCHAINS": str(toolchains),
        "LD_LIBRARY_PATH": variables["LD_LIBRARY_PATH"],
    }
    program = replace(served_program, environment=served_program.environment | environment)
    for words in (["same", f"qnn={root}"], [f"qnn={RELEASE}"]):
        added = program.run("toolchain", "add", *words)
        assert (added.returncode, added.stderr) == (0, "")
    ran = program.run("run", *OVERRIDES, f"toolchain=default,same,{BRIDGED}", f"artifacts={artifacts}")
    assert ran.returncode == 0, ran.stderr
    return Sweep(artifacts, toolchains, ran.stdout, program)


def comparable(row: dict[str, Any], *, without: set[str]) -> dict[str, Any]:
    """Return the columns that measure a cell, without those that time it."""
    timed = {name for name in row if name.endswith(("_s", "_ms"))}
    return {name: value for name, value in row.items() if name not in NAMES | timed | without}


@pytest.mark.parametrize(
    "table", ["operators", "outputs", "budget", "details", "delegation", "audit", "metrics", "probe"]
)
def test_the_same_release_under_two_names_gives_no_finding(sweep: Sweep, table: str) -> None:
    default, same = (
        [comparable(row, without=set()) for row in sweep.rows(table, name)] for name in ("default", "same")
    )
    assert default == same
    assert default or table == "metrics"


def test_the_cells_of_the_same_release_differ_in_nothing_but_the_compilation(sweep: Sweep) -> None:
    (default,), (same,) = (sweep.rows("cells", name) for name in ("default", "same"))
    assert comparable(default, without=PER_COMPILATION) == comparable(same, without=PER_COMPILATION)
    assert default["outcome"] == "passed"
    assert default["outputs_sha256"] == same["outputs_sha256"]
    folder = folder_of(sweep.toolchains, "same")
    assert (default["qnn_files"], same["qnn_files"]) == (None, read_record(folder).digest)


def test_a_bridged_release_gets_every_setting_and_leaves_no_trace_in_the_program(sweep: Sweep) -> None:
    name = BRIDGED
    record = read_record(folder_of(sweep.toolchains, name))
    assert record.bridge == "device structure"
    assert record.provisional is None
    (cell,) = sweep.rows("cells", name)
    assert (cell["outcome"], cell["bridge"], cell["program_qnn"]) == ("passed", record.bridge, record.build)
    assert cell["qnn"] == record.build != sweep.rows("cells", "default")[0]["qnn"]
    checks = {(row["check"], row["program"]): (row["asked"], row["got"], row["status"])
              for row in sweep.rows("audit", name)}  # fmt: skip
    for program in ("shipping", "debug"):
        assert checks["bridge to QNN", program] == ("device structure", "device structure", "met")
        assert checks["VTCM of the graph", program] == ("8 MiB", "8 MiB", "met")
        assert checks["optimization level", program] == ("3", "3", "met")
        assert checks["SoC in the context", program] == ("SM8650", "SM8650", "met")
    assert {status for *_, status in checks.values()} == {"met", "unread"}
    assert not [row for row in sweep.rows("audit", "default") if row["check"] == "bridge to QNN"]
    (compiled,) = sweep.folder.glob(f"files/digits_cnn/8a8w/SM8650/@{name}/qnn/local/program.pte")
    content = compiled.read_bytes()
    assert [word for word in (b"bridge", str(sweep.toolchains).encode()) if word in content] == []


def test_the_toolchain_is_shown_because_it_varies(sweep: Sweep) -> None:
    assert sweep.output.split("\n")[1].split()[:4] == ["model", "scheme", "soc", "toolchain"]
    assert (sweep.folder / "report.html").read_text().count(f"<span>{BRIDGED}</span></h3>") == 1


def test_the_same_release_under_two_names_qualifies_after_an_interruption(sweep: Sweep) -> None:
    interrupted = sweep.program.start(*sweep.qualify("same"), "--json")
    assert interrupted.stderr is not None
    next(line for line in interrupted.stderr if line.startswith("export "))
    os.killpg(interrupted.pid, signal.SIGINT)
    _, errors = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert errors.endswith("qnnsweep: interrupted; run the same command again to continue\n")

    exit_code, answer = sweep.qualified("same")
    (cell,) = answer["difference"]["cells"]
    assert (exit_code, answer["passed"], cell["changes"]) == (0, True, [])
    assert (answer["equal_outputs"], answer["before"]["versions"]["qnn"]) == (1, answer["after"]["versions"]["qnn"])
    (page,) = sweep.store.root.glob("runs/*/qualify-default-same.md")
    assert page.read_text().startswith("# same instead of default: nothing got worse, 0 values got better\n")
    assert "## " not in page.read_text()


def test_a_bridged_release_has_equal_outputs_and_a_larger_program(sweep: Sweep) -> None:
    exit_code, answer = sweep.qualified(BRIDGED)
    (cell,) = answer["difference"]["cells"]
    by_verdict = {verdict: set[str]() for verdict in ("regressed", "undefined")}
    for change in cell["changes"]:
        by_verdict[change["verdict"]].add(change["what"])
    counts = {"spill_bytes", "fill_bytes", "read_total_bytes", "write_total_bytes"}
    assert by_verdict == {"regressed": {"pte_bytes"}, "undefined": counts}
    assert (exit_code, answer["passed"], answer["equal_outputs"]) == (1, False, 1)
    assert [answer[side]["versions"]["bridge"] for side in ("before", "after")] == [None, "device structure"]
    assert answer["after"]["program_bytes"] > answer["before"]["program_bytes"]

    printed = sweep.program.run(*sweep.qualify(BRIDGED))
    (*_, page) = sorted(sweep.store.root.glob(f"runs/*/qualify-default-{BRIDGED}.md"))
    assert printed.returncode == 1
    assert printed.stdout == page.read_text()
    assert printed.stdout.count("\n| largest memory of a compilation | in the cache | in the cache |\n") == 1


def test_a_cell_that_a_rule_calls_impossible_is_tried_with_both(sweep: Sweep) -> None:
    exit_code, answer = sweep.qualified(BRIDGED, "scheme=16a16w", "soc=SM8450")
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
def test_a_mistake_of_qualify_is_one_line_and_exit_code_2(sweep: Sweep, words: list[str], message: str) -> None:
    ran = sweep.program.run("qualify", *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {message}\n")
