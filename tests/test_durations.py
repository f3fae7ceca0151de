"""The order in which files of tests start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import durations


class Item(pytest.Item):
    def runtest(self) -> None:
        pass


def test_files_start_longest_first_and_a_file_without_a_recorded_duration_before_all(
    request: pytest.FixtureRequest,
) -> None:
    def item(nodeid: str) -> pytest.Item:
        return Item.from_parent(request.session, name=nodeid, nodeid=nodeid)

    names = ["short.py::b", "long.py::a[x::y]", "new.py::c", "short.py::a", "long.py::z"]
    ordered = durations.longest_first([item(name) for name in names], {"short.py": 1, "long.py": 60.5})
    assert [item.nodeid for item in ordered] == [
        "new.py::c", "long.py::a[x::y]", "long.py::z", "short.py::b", "short.py::a",
    ]  # fmt: skip


def test_the_durations_of_a_run_replace_those_of_its_files_and_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durations, "RECORDED", tmp_path / "durations.json")
    other, ran = "tests/test_keys.py", "tests/test_durations.py"
    durations.RECORDED.write_text(json.dumps({other: 7.5, ran: 3.0, "tests/test_that_is_gone.py": 9.0}))
    recorder = durations.Recorder()
    for phase, seconds in {"setup": 1.25, "call": 2.5}.items():
        recorder.pytest_runtest_logreport(
            pytest.TestReport(f"{ran}::a", (ran, 1, "a"), {}, "passed", None, phase, duration=seconds)
        )
    recorder.pytest_sessionfinish()
    assert durations.recorded() == {ran: 3.8, other: 7.5}
