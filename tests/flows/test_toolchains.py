"""One sweep with three toolchains: the default, the same release under another name, and a release with the bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.storage import tables
from tasks.storage.store import Store
from tasks.toolchain.prepared.record import read_record
from tests.program import Program
from tests.toolchain.prepared.conftest import WHEELS
from tests.toolchain.prepared.conftest import user_sdk as user_sdk

pytestmark = pytest.mark.toolchain

OVERRIDES = ("model=digits_cnn", "model.evaluation.count=8", "model.calibration.count=32", "measure.operator_samples=1")
RELEASE = "2.51"
NAMES = {"run_id", "toolchain"}
PER_COMPILATION = {"log", "qnn_files", "sent_bytes"}
"""Columns that differ between two cells of the same release: its name, and which blobs the device had already."""


class Sweep:
    """The tables of the sweep, and its toolchains."""

    def __init__(self, folder: Path, toolchains: Path, output: str) -> None:
        self.store = Store.at(str(folder))
        (self.run,) = tables.runs(self.store)
        self.toolchains = toolchains
        self.output = output

    def rows(self, table: str, toolchain: str) -> list[dict[str, Any]]:
        return [row for row in tables.rows(self.store, table, self.run) if row["toolchain"] == toolchain]


@pytest.fixture(scope="module")
def sweep(program: Program, user_sdk: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    root, environment = user_sdk
    toolchains, artifacts = tmp_path_factory.mktemp("toolchains"), tmp_path_factory.mktemp("artifacts")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS), "QNNSWEEP_TOOLCHAINS": str(toolchains)}
    search = {"LD_LIBRARY_PATH": environment["LD_LIBRARY_PATH"]}
    for words, variables in ((["same", f"qnn={root}"], offline | search), ([f"qnn={RELEASE}"], offline)):
        added = program.run("toolchain", "add", *words, **variables)
        assert (added.returncode, added.stderr) == (0, "")
    names = f"toolchain=default,same,qnn-{RELEASE}"
    ran = program.run("run", *OVERRIDES, names, f"artifacts={artifacts}", **offline, **search)
    assert ran.returncode == 0, ran.stderr
    return Sweep(artifacts, toolchains, ran.stdout)


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
    folder = sweep.toolchains / "files" / "same"
    assert (default["qnn_files"], same["qnn_files"]) == (None, read_record(folder).digest)


def test_a_bridged_release_gets_every_setting_and_leaves_no_trace_in_the_program(sweep: Sweep) -> None:
    name = f"qnn-{RELEASE}"
    record = read_record(sweep.toolchains / "files" / name)
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
    (compiled,) = sweep.store.root.glob(f"runs/*/files/digits_cnn/8a8w/SM8650/@{name}/qnn/local/program.pte")
    content = compiled.read_bytes()
    assert [word for word in (b"bridge", str(sweep.toolchains).encode()) if word in content] == []


def test_the_toolchain_is_shown_because_it_varies(sweep: Sweep) -> None:
    assert sweep.output.split("\n")[1].split()[:4] == ["model", "scheme", "soc", "toolchain"]
    (page,) = sweep.store.root.glob("runs/*/report.html")
    assert page.read_text().count(f"<span>qnn-{RELEASE}</span></h3>") == 1
