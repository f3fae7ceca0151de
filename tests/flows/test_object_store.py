"""The same sweep on two machines that share only a place in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.sweep_outputs import TIMES, result_of
from tests.flows.test_sweep import DIGITS
from tests.object_store import KEY_ID, SECRET, ObjectStore, serve_object_store
from tests.program import Program, new_program, with_server

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

NIGHTS = "s3://sweeps/nights"
RUN = ("run", "--json", *DIGITS, "scheme=8a8w", "soc=SM8350", f"artifacts={NIGHTS}")
HERE = f"--artifacts={NIGHTS}"


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with serve_object_store(tmp_path_factory.mktemp("moto")) as running:
        running.create_bucket("sweeps")
        yield running


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore) -> Iterator[list[Program]]:
    """Two hosts that share only the object store: each has its own folders and its own Prefect server."""

    def host() -> Program:
        program = new_program(tmp_path_factory)
        environment = object_store.environment | {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
        return replace(program, environment=program.environment | environment)

    with ExitStack() as stack:
        yield [stack.enter_context(with_server(host()))[0] for _ in range(2)]


@pytest.fixture(scope="module")
def two_runs(hosts: list[Program]) -> list[dict[str, Any]]:
    """The same command on one host after the other."""
    summaries = []
    for host in hosts:
        ran = host.run(*RUN)
        assert ran.returncode == 0, ran.stderr
        for output in (ran.stdout, ran.stderr):
            assert KEY_ID not in output
            assert SECRET not in output
        summaries.append(result_of(ran))
    return summaries


@pytest.fixture
def place(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The place, on a third machine."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return Store(tmp_path, NIGHTS)


def cache_of(host: Program) -> Path:
    """The host's folder for the bucket. A bucket that was refused has a folder without any blob."""
    folders = Path(host.environment["XDG_CACHE_HOME"], "qnnsweep").iterdir()
    return max(folders, key=lambda folder: len([*folder.glob("blobs/*/*")]))


def blobs_of(host: Program) -> set[str]:
    return {path.name for path in cache_of(host).glob("blobs/*/*")}


def test_the_second_host_does_no_toolchain_work(two_runs: list[dict[str, Any]]) -> None:
    assert [(summary["toolchain_calls"], summary["reused"]) for summary in two_runs] == [(3, 0), (0, 5)]
    for summary in two_runs:
        assert summary["tables"] == f"{NIGHTS}/tables"
        assert summary["report"] == f"{NIGHTS}/runs/{summary['run_id']}/report.html"
        assert summary["outcomes"] == {"passed": 1}


def rows_without(columns: set[str], place: Store, table: str, run_id: str) -> list[dict[str, Any]]:
    rows = tables.rows(place, table, run_id)
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


def test_the_tables_of_both_are_equal_but_for_times(two_runs: list[dict[str, Any]], place: Store) -> None:
    first, second = (summary["run_id"] for summary in two_runs)
    assert tables.runs(place) == sorted([first, second])
    for name in set(tables.TABLES) - {"work", "trends"}:  # which depend on what was cached and on earlier runs
        neutral = {"run_id", *TIMES.get(name, set())}
        assert rows_without(neutral, place, name, first) == rows_without(neutral, place, name, second)


def test_the_second_host_fetched_only_what_it_needed(
    two_runs: list[dict[str, Any]], hosts: list[Program], place: Store
) -> None:
    assert two_runs
    everything = {name.rpartition("/")[2] for name in place.files.names("blobs")}
    first, second = map(blobs_of, hosts)
    assert first <= everything
    assert second <= everything
    assert len(second) < len(first), "a warm sweep needs no calibration samples and no exported programs"
    for host in hosts:
        assert list((cache_of(host) / "partial").iterdir()) == []


def test_every_blob_that_a_runs_files_name_is_complete(two_runs: list[dict[str, Any]], place: Store) -> None:
    for summary in two_runs:
        files = json.loads(place.files.read(f"runs/{summary['run_id']}/files/digits_cnn/8a8w/SM8350/qnn/local.json"))
        assert "program.pte" in files
        for name in files.values():
            blob = place.find(name.rpartition("/")[2])
            assert blob is not None
            place.verify(blob)


def test_no_credential_is_in_any_stored_file(
    two_runs: list[dict[str, Any]], hosts: list[Program], place: Store
) -> None:
    assert two_runs
    stored = {name: place.files.read(name) for folder in ("blobs", "results", "runs", "tables") for name in
            place.files.names(folder)}  # fmt: skip
    for host in hosts:
        stored |= {str(path): path.read_bytes() for path in cache_of(host).rglob("*") if path.is_file()}
        home = Path(host.environment["PREFECT_HOME"])
        stored |= {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert len(stored) > 100
    assert [name for name, data in stored.items() if KEY_ID.encode() in data or SECRET.encode() in data] == []


def test_every_host_renders_the_report_of_every_run(two_runs: list[dict[str, Any]], hosts: list[Program]) -> None:
    ran = hosts[1].run("report", two_runs[0]["run_id"], "--json", HERE)
    assert ran.returncode == 0, ran.stderr
    assert result_of(ran) == two_runs[0]
    (file,) = (line.split()[1] for line in ran.stdout.splitlines() if line.startswith("  here "))
    page = Path(file).read_text()
    for words in ("digits_cnn", "8a8w", "SM8350", "qnnsweep run"):
        assert words in page


def test_a_run_of_another_host_is_compared_again(two_runs: list[dict[str, Any]], hosts: list[Program]) -> None:
    ran = hosts[1].run("recompare", "tolerance=none", f"--run={two_runs[0]['run_id']}", "--json", HERE)
    assert ran.returncode in (0, 1), ran.stderr
    summary = result_of(ran)
    assert (summary["toolchain_calls"], summary["reused"], summary["cells"]) == (0, 1, 1)
    assert summary["report"].startswith(f"{NIGHTS}/runs/")


def test_two_simultaneous_sweeps_in_one_place_both_pass(hosts: list[Program], place: Store) -> None:
    command = [part.replace("8a8w", "16a8w") for part in RUN]
    sweeps = [host.start(*command) for host in hosts]
    outputs = [(*sweep.communicate(timeout=600), sweep.returncode) for sweep in sweeps]
    assert [code for _, _, code in outputs] == [0, 0], outputs
    summaries = [json.loads(out.splitlines()[-1]) for out, _, _ in outputs]
    assert [summary["outcomes"] for summary in summaries] == [{"passed": 1}] * 2
    first, second = (rows_without({"run_id"}, place, "outputs", summary["run_id"]) for summary in summaries)
    assert first == second
    again = hosts[0].run(*command)
    assert result_of(again)["toolchain_calls"] == 0


def test_a_missing_bucket_is_one_line_of_stderr_and_nothing_starts(hosts: list[Program]) -> None:
    count = ["1 cell to run, 0 impossible"]
    for verb, before in (
        (("run", "artifacts=s3://seweps/nights"), count),
        (("report", "--artifacts=s3://seweps/nights"), []),
    ):
        ran = hosts[0].run(*verb)
        assert ran.returncode == 3, ran.stderr
        *lines, line = ran.stderr.splitlines()
        assert lines == before
        assert line.startswith("qnnsweep: artifacts=s3://seweps/nights: ")
        assert line.endswith("NO_SUCH_BUCKET during PutObject operation: The specified bucket does not exist; "
                             "create the bucket, or correct its name")  # fmt: skip


def test_the_doctor_checks_the_bucket(hosts: list[Program]) -> None:
    ran = hosts[0].run("doctor", "--json", HERE)
    (check,) = (check for check in result_of(ran)["checks"] if check["what"] == "artifacts")
    assert check["ok"]
    assert check["found"].startswith(f"{NIGHTS}, ")
    assert check["found"].endswith(f", here in {cache_of(hosts[0])}")
    refused = hosts[0].run("doctor", "--json", "--artifacts=s3://seweps/nights")
    assert refused.returncode == 3
