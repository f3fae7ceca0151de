"""Points without a cell: they are untestable between the ends, and one line at an end. No cell is run here."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnsweep.conf.errors import printable
from qnnsweep.conf.load import load
from qnnsweep.conf.names import DEFAULT_ORACLE
from qnnsweep.flows.bisection.probes import Probe, Probes
from qnnsweep.flows.bisection.request import Point
from qnnsweep.flows.session import Session
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.results.oracle import parsed_oracle
from tests.toolchain.prepared.small_clone import SmallClone

NEEDS_BUILD = (
    "backends/qualcomm/serialization/qc_compiler_spec.fbs differs from that of the installed release, whose C++ code "
    "reads it: such a commit needs a build"
)


class Bench:
    """The probes of a bisection, and a clone whose commits cannot be built."""

    def __init__(self, folder: Path) -> None:
        self.clone = SmallClone(folder / "clone")
        sha = self.clone.commit("first")
        self.commit = Point(label="first", words=("model=digits_cnn", f"executorch={self.clone.folder}@{sha}"))
        self.reason = f"executorch={printable(f'{self.clone.folder}@{sha}')}: {NEEDS_BUILD}"
        self.prepared: list[int] = []
        self.probed: list[Probe] = []
        self._plan = load([f"artifacts={folder / 'artifacts'}"])

    def probes(self, *ends: Point) -> Probes:
        oracle = parsed_oracle(DEFAULT_ORACLE)
        session = Session(self._plan, ())
        return Probes(session, oracle, ends, [], self.prepared.append, self.probed.append)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("QNNSWEEP_TOOLCHAINS", str(tmp_path / "toolchains"))
    return Bench(tmp_path)


def test_a_commit_that_cannot_be_built_is_untestable_between_the_ends(bench: Bench) -> None:
    probes = bench.probes()
    (probe,) = probes.measure([bench.commit])
    assert (probe.answer, probe.judgement.why, probe.cell, probe.toolchain) == ("untestable", bench.reason, None, None)
    assert (bench.prepared, bench.probed, probes.all) == ([1], [probe], [probe])
    assert probes.measure([bench.commit]) == [probe]
    assert bench.probed == [probe], "a point is measured once"


def test_a_commit_that_cannot_be_built_is_one_line_at_an_end(bench: Bench) -> None:
    with pytest.raises(RequestError) as caught:
        bench.probes(bench.commit).measure([bench.commit])
    assert str(caught.value) == bench.reason


def test_changes_that_do_not_go_together_are_untestable(bench: Bench) -> None:
    words = ("model=digits_cnn", "device=local", "farm=local")
    (probe,) = bench.probes().measure([Point(label="both", words=words)])
    assert probe.answer == "untestable"
    assert probe.judgement.why == "device=, farm=: a cell goes to a device or to a farm; set only one of the two"


def test_a_full_disk_ends_the_command_with_one_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    with pytest.raises(RequestError) as caught:
        bench.probes().measure([bench.commit])
    assert str(caught.value).startswith("3 MiB free at ")
    assert "\n" not in str(caught.value)
