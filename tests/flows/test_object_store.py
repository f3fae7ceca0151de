"""Two machines with folders of their own and one place in an object store: the same sweep on both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

from tasks.storage import tables
from tasks.storage.store import Store
from tests.object_store import KEY_ID, SECRET, ObjectStore, serving

from .conftest import Program, new_program
from .sweep_outputs import TIMES, result_of
from .test_sweep import DIGITS

pytestmark = pytest.mark.toolchain

NIGHTS = "s3://sweeps/nights"
RUN = ("run", "--json", *DIGITS, "scheme=8a8w", "soc=SM8350", f"artifacts={NIGHTS}")
HERE = f"--artifacts={NIGHTS}"


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with serving(tmp_path_factory.mktemp("moto")) as running:
        running.make("sweeps")
        yield running


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore) -> list[Program]:
    """Two, with nothing in common but the object store."""

    def machine() -> Program:
        made = new_program(tmp_path_factory)
        own = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
        return replace(made, environment=made.environment | own | object_store.environment)

    return [machine(), machine()]


@pytest.fixture(scope="module")
def two_runs(machines: list[Program]) -> list[dict[str, Any]]:
    """The same command on one machine after the other."""
    told = []
    for machine in machines:
        ran = machine.run(*RUN)
        assert ran.returncode == 0, ran.stderr
        for said in (ran.stdout, ran.stderr):
            assert KEY_ID not in said
            assert SECRET not in said
        told.append(result_of(ran))
    return told


@pytest.fixture
def place(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The place as a third machine sees it."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return Store(tmp_path, NIGHTS)


def cache_of(machine: Program) -> Path:
    (folder,) = Path(machine.environment["XDG_CACHE_HOME"], "qnnsweep").iterdir()
    return folder


def blobs_of(machine: Program) -> set[str]:
    return {path.name for path in cache_of(machine).glob("blobs/*/*")}


def test_the_second_machine_does_no_toolchain_work(two_runs: list[dict[str, Any]]) -> None:
    assert [(told["toolchain_calls"], told["reused"]) for told in two_runs] == [(3, 0), (0, 4)]
    for told in two_runs:
        assert told["tables"] == f"{NIGHTS}/tables"
        assert told["report"] == f"{NIGHTS}/runs/{told['run_id']}/report.html"
        assert told["outcomes"] == {"passed": 1}


def test_the_tables_of_both_are_equal_but_for_times(two_runs: list[dict[str, Any]], place: Store) -> None:
    first, second = (told["run_id"] for told in two_runs)
    assert tables.runs(place) == sorted([first, second])
    for name in set(tables.TABLES) - {"work", "trends"}:  # which say what was not done again, and how often it was seen
        neutral = ["run_id", *TIMES.get(name, set())]
        before, after = (tables.read(place, name, run).drop(columns=neutral) for run in (first, second))
        pandas.testing.assert_frame_equal(before, after)


def test_the_second_machine_fetched_only_what_it_needed(
    two_runs: list[dict[str, Any]], machines: list[Program], place: Store
) -> None:
    assert two_runs
    everything = {name.rpartition("/")[2] for name in place.files.names("blobs")}
    first, second = map(blobs_of, machines)
    assert first <= everything
    assert second <= everything
    assert len(second) < len(first), "calibration samples and exported programs are of no use to a warm sweep"
    for machine in machines:
        assert list((cache_of(machine) / "partial").iterdir()) == []


def test_every_blob_that_a_run_shows_is_there_whole(two_runs: list[dict[str, Any]], place: Store) -> None:
    for told in two_runs:
        shown = json.loads(place.files.read(f"runs/{told['run_id']}/files/digits_cnn/8a8w/SM8350/qnn/local.json"))
        assert "program.pte" in shown
        for name in shown.values():
            blob = place.find(name.rpartition("/")[2])
            assert blob is not None
            place.verify(blob)


def test_no_credential_is_in_anything_that_is_kept(
    two_runs: list[dict[str, Any]], machines: list[Program], place: Store
) -> None:
    assert two_runs
    kept = {name: place.files.read(name) for folder in ("blobs", "results", "runs", "tables") for name in
            place.files.names(folder)}  # fmt: skip
    for machine in machines:
        kept |= {str(path): path.read_bytes() for path in cache_of(machine).rglob("*") if path.is_file()}
        home = Path(machine.environment["PREFECT_HOME"])
        kept |= {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert len(kept) > 100
    assert [name for name, data in kept.items() if KEY_ID.encode() in data or SECRET.encode() in data] == []


def test_any_machine_shows_the_report_of_any_run(two_runs: list[dict[str, Any]], machines: list[Program]) -> None:
    ran = machines[1].run("report", two_runs[0]["run_id"], "--json", HERE)
    assert ran.returncode == 0, ran.stderr
    assert result_of(ran) == two_runs[0]
    (here,) = (line.split()[1] for line in ran.stdout.splitlines() if line.startswith("  here "))
    page = Path(here).read_text()
    for words in ("digits_cnn", "8a8w", "SM8350", "qnnsweep run"):
        assert words in page


def test_a_run_of_another_machine_is_compared_again(two_runs: list[dict[str, Any]], machines: list[Program]) -> None:
    ran = machines[1].run("recompare", "tolerance=none", f"--run={two_runs[0]['run_id']}", "--json", HERE)
    assert ran.returncode in (0, 1), ran.stderr
    told = result_of(ran)
    assert (told["toolchain_calls"], told["reused"], told["cells"]) == (0, 1, 1)
    assert told["report"].startswith(f"{NIGHTS}/runs/")


def test_two_sweeps_at_once_on_one_place_both_end_well(machines: list[Program], place: Store) -> None:
    command = [part.replace("8a8w", "16a8w") for part in RUN]
    sweeps = [machine.start(*command) for machine in machines]
    ended = [(*sweep.communicate(timeout=600), sweep.returncode) for sweep in sweeps]
    assert [code for _, _, code in ended] == [0, 0], ended
    told = [json.loads(out.splitlines()[-1]) for out, _, _ in ended]
    assert [each["outcomes"] for each in told] == [{"passed": 1}] * 2
    first, second = (tables.read(place, "outputs", each["run_id"]).drop(columns="run_id") for each in told)
    pandas.testing.assert_frame_equal(first, second)
    again = machines[0].run(*command)
    assert result_of(again)["toolchain_calls"] == 0


def test_a_bucket_that_is_not_there_is_one_line_and_nothing_starts(machines: list[Program]) -> None:
    for verb in (("run", "artifacts=s3://seweps/nights"), ("report", "--artifacts=s3://seweps/nights")):
        ran = machines[0].run(*verb)
        assert ran.returncode == 3, ran.stderr
        (line,) = ran.stderr.splitlines()
        assert line.startswith("qnnsweep: artifacts=s3://seweps/nights: ")
        assert line.endswith("NO_SUCH_BUCKET during PutObject operation: The specified bucket does not exist; "
                             "make the bucket, or correct its name")  # fmt: skip


def test_the_doctor_looks_at_the_bucket_too(machines: list[Program]) -> None:
    ran = machines[0].run("doctor", "--json", HERE)
    (found,) = (check for check in result_of(ran)["checks"] if check["what"] == "artifacts")
    assert found["ok"]
    assert found["found"].startswith(f"{NIGHTS}, ")
    assert "this machine's folder for it" in found["found"]
    refused = machines[0].run("doctor", "--json", "--artifacts=s3://seweps/nights")
    assert refused.returncode == 3
