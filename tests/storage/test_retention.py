"""Tests which runs, results and blobs a prune removes, also when runs share them."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.records import Blob, Launch
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import encode
from qnnsweep.tasks.storage.inventory import inventory
from qnnsweep.tasks.storage.manifest import RunManifest, read_manifest, referenced_blobs, write_manifest
from qnnsweep.tasks.storage.retention import UNREFERENCED_GRACE_S, Selection, apply, plan_prune
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import CAPTURE, LOWERED

DAY_S = 86_400
RUNS = [f"2026010{day}T220000Z-0000" for day in range(1, 5)]


def add_run(store: Store, run_id: str, numbers: set[int], *, days_ago: float = 0.0) -> None:
    """Add a run that computed one result, and references one blob, per number."""
    results: dict[str, bool] = {}
    blobs: dict[str, int] = {}
    for number in numbers:
        results[add_result(store, number)] = False
        blob = store.put_bytes(bytes(100 + number))
        blobs[blob.sha256] = blob.size
    write_manifest(store, run_id, RunManifest(results=results, blobs=blobs))
    tables.write(store, run_id, "cells", [])
    written = time.time() - days_ago * DAY_S
    os.utime(store.root / "tables" / "cells" / f"run={run_id}", (written, written))


def add_result(store: Store, number: int) -> str:
    """Add a cached result whose record references the blob of that number. Return the name of the result."""
    blob = store.put_bytes(bytes(100 + number))
    record = launch(blob)
    name = f"lower-{number:064}.parquet"
    for folder in ("records", "keys"):
        path = store.root / "results" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(record))
    return name


def launch(blob: Blob) -> Launch:
    """A record that references `blob`."""
    return Launch(
        name="shipping",
        program=blob,
        input_list=blob,
        samples=1,
        debug=False,
        debug_buffer_bytes=0,
        events=5,
        iterations=1,
        warm_up=0,
        methods=(),
    )


def bytes_on_disk(store: Store) -> int:
    """Return the bytes of runs, results and blobs on disk."""
    files = [*store.root.glob("runs/*/*"), *store.root.glob("tables/*/*/*"), *store.root.glob("results/records/*")]
    return sum(path.stat().st_size for path in [*files, *store.blobs.glob("*/*")])


def results(store: Store) -> set[str]:
    records = {path.name for path in (store.root / "results" / "records").glob("*")}
    assert {path.name for path in (store.root / "results" / "keys").glob("*")} == records
    return records


@given(
    run_numbers=st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=4),
    named=st.sets(st.integers(0, 3)),
    limit=st.one_of(st.none(), st.integers(0, 30_000)),
    protected=st.integers(0, 3),
)
def test_a_remaining_run_keeps_all_that_it_references_and_nothing_else_is_left(
    tmp_path_factory: pytest.TempPathFactory,
    run_numbers: list[set[int]],
    named: set[int],
    limit: int | None,
    protected: int,
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    for run_id, numbers in zip(RUNS, run_numbers, strict=False):
        add_run(store, run_id, numbers)
    wanted = tuple(RUNS[number] for number in sorted(named) if number < len(run_numbers))
    plan = plan_prune(store, Selection(runs=wanted, larger_than=limit, protected=protected))
    before = bytes_on_disk(store)
    apply(store, plan)
    assert (plan.freed, plan.left) == (before - bytes_on_disk(store), bytes_on_disk(store))
    stay = tables.runs(store)
    assert stay == [run for run in RUNS[: len(run_numbers)] if run not in plan.runs]
    assert set(wanted) <= set(plan.runs)
    manifests = [read_manifest(store, run) for run in stay]
    assert results(store) == {name for manifest in manifests for name in manifest.results}
    assert {path.name for path in store.blobs.glob("*/*")} == {
        name for manifest in manifests for name in manifest.blobs
    }
    newest = set(RUNS[: len(run_numbers)][len(run_numbers) - protected :] if protected < len(run_numbers) else RUNS)
    assert set(plan.runs) & newest <= set(wanted)
    if limit is not None:
        assert plan.left <= limit or set(stay) <= newest


def test_runs_beyond_an_age_or_a_number_are_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for run_id, days in zip(RUNS, (40, 31, 29, 0), strict=True):
        add_run(store, run_id, {1}, days_ago=days)
    assert plan_prune(store, Selection(older_than_s=30 * DAY_S)).runs == tuple(RUNS[:2])
    assert plan_prune(store, Selection(older_than_s=0, protected=3)).runs == tuple(RUNS[:1])
    assert plan_prune(store, Selection(at_most=1)).runs == tuple(RUNS[:3])
    assert plan_prune(store, Selection(at_most=9)).runs == ()
    assert plan_prune(store, Selection()).runs == ()


def test_the_run_that_has_just_ended_stays_even_if_its_id_is_the_oldest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for run_id in RUNS:
        add_run(store, run_id, {1}, days_ago=40)
    ended = RUNS[0]
    for selection, removed in (
        (Selection(at_most=2, runs_that_stay=(ended,)), (RUNS[1], RUNS[2])),
        (Selection(at_most=1, runs_that_stay=(ended,)), (RUNS[1], RUNS[2], RUNS[3])),
        (Selection(older_than_s=DAY_S, runs_that_stay=(ended,)), (RUNS[1], RUNS[2], RUNS[3])),
        (Selection(larger_than=0, runs_that_stay=(ended,)), (RUNS[1], RUNS[2], RUNS[3])),
    ):
        assert plan_prune(store, selection).runs == removed


@pytest.mark.parametrize(("run_id", "days_ago"), [("20991231T220000Z-0000", 1.0), (RUNS[1], -1.0)])
def test_no_run_is_removed_by_age_while_some_run_is_of_the_future(tmp_path: Path, run_id: str, days_ago: float) -> None:
    store = Store(tmp_path)
    add_run(store, RUNS[0], {1}, days_ago=40)
    add_run(store, run_id, {1}, days_ago=days_ago)
    with pytest.raises(EnvironmentUnusable, match=rf"^run {run_id} is of .* in the future, .*; correct the clock"):
        plan_prune(store, Selection(older_than_s=30 * DAY_S))
    assert plan_prune(store, Selection(at_most=1)).runs == (RUNS[0],)


def test_unreferenced_results_and_blobs_are_removed_after_a_day(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_run(store, RUNS[0], {1})
    young, old = add_result(store, 2), add_result(store, 3)
    stray = store.put_bytes(b"a log")
    for path in (tmp_path / "results" / "records" / old, *store.blobs.glob("*/*")):
        before = time.time() - UNREFERENCED_GRACE_S - 60
        os.utime(path, (before, before))
    (tmp_path / "runs" / "killed").mkdir()
    evidence = tmp_path / "runs" / "killed" / "evidence"
    evidence.write_text("half a run")
    before = time.time() - UNREFERENCED_GRACE_S - 60
    for path in (evidence, evidence.parent):
        os.utime(path, (before, before))
    plan = plan_prune(store, Selection())
    gone = store.put_bytes(bytes(103))
    assert (plan.runs, plan.remains, plan.results) == ((), ("killed",), (old,))
    assert sorted(plan.blobs) == sorted([stray.sha256, gone.sha256])
    apply(store, plan)
    assert not (tmp_path / "runs" / "killed").exists()
    assert young in results(store)
    store.read(store.put_bytes(bytes(102)))


def test_an_incomplete_run_is_removed_a_day_after_its_last_write(tmp_path: Path) -> None:
    """Such a run may be the shards of a sweep on other machines."""
    store = Store(tmp_path)
    shard = Store(tmp_path / "runs" / RUNS[0] / "shards" / "0000")
    tables.write(shard, RUNS[0], "cells", [])
    before = time.time() - UNREFERENCED_GRACE_S - 60
    paths = [tmp_path / "runs" / RUNS[0], *(tmp_path / "runs" / RUNS[0]).rglob("*")]
    for path in paths[:-1]:
        os.utime(path, (before, before))
    assert plan_prune(store, Selection()).remains == ()
    os.utime(paths[-1], (before, before))
    assert plan_prune(store, Selection()).remains == (RUNS[0],)


def test_the_list_of_runs_is_no_incomplete_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.files.write("runs/index.html", b"<html>")
    os.utime(tmp_path / "runs" / "index.html", (0, 0))
    assert plan_prune(store, Selection()).remains == ()


def test_a_result_that_a_removed_run_recomputed_keeps_its_blobs_for_a_remaining_run(tmp_path: Path) -> None:
    """A repeated measurement gives other latencies: under the same key, the result of the newer run is cached."""
    store = Store(tmp_path)
    add_run(store, RUNS[0], {1})
    name = add_result(store, 1)
    newer = store.put_bytes(b"measured again")
    (tmp_path / "results" / "records" / name).write_bytes(encode(launch(newer)))
    write_manifest(store, RUNS[1], RunManifest(results={name: False}, blobs={newer.sha256: newer.size}))
    tables.write(store, RUNS[1], "cells", [])
    plan = plan_prune(store, Selection(runs=(RUNS[1],)))
    assert (plan.runs, plan.results, plan.blobs) == ((RUNS[1],), (), ())


def test_a_run_with_a_damaged_manifest_keeps_all_results_and_blobs_but_not_the_selected_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number, run_id in enumerate(RUNS):
        add_run(store, run_id, {number})
    (tmp_path / "runs" / RUNS[1] / "holds.json").write_text('{"results": {')
    plan = plan_prune(store, Selection(runs=(RUNS[0],)))
    assert (plan.runs, plan.results, plan.blobs) == ((RUNS[0],), (), ())
    (line,) = plan.unreadable
    assert re.fullmatch(rf".*/runs/{RUNS[1]}/holds.json cannot be read: .*; prune that run too, with --run .*", line)
    assert "\n" not in line
    assert plan_prune(store, Selection(larger_than=0)).runs == ()  # no number of runs frees the blobs
    beyond = plan_prune(store, Selection(at_most=2))
    assert (beyond.runs, beyond.unreadable) == (tuple(RUNS[:2]), ())
    assert len(beyond.results) == 1
    with pytest.raises(RequestError, match="no such run"):
        plan_prune(store, Selection(runs=("another",)))


def test_the_blobs_of_a_record_are_listed_from_any_depth() -> None:
    assert {blob.sha256[0] for blob in referenced_blobs(LOWERED)} == set("0123456789abcef")
    assert {blob.sha256[0] for blob in referenced_blobs(CAPTURE)} == set("123456def")


def test_the_inventory_counts_a_blob_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_run(store, RUNS[0], {1, 2})
    add_run(store, RUNS[1], {2})
    store.put_bytes(b"a log")
    contents = inventory(store, 1)
    stages = {
        stage.stage: (stage.results, stage.blobs, stage.blob_bytes, stage.shared_bytes) for stage in contents.stages
    }
    assert stages["lower"] == (2, 2, 203, 0)
    assert stages["others"] == (0, 1, 5, 0)
    assert contents.bytes == bytes_on_disk(store)
    (run,) = contents.runs
    assert (run.run_id, run.made, run.reused, run.blobs, run.held_bytes, run.alone_bytes) == (RUNS[1], 1, 0, 1, 102, 0)


def test_files_that_other_processes_write_and_remove_meanwhile_are_no_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_run(store, RUNS[0], {1, 2})
    is_over = threading.Event()
    folder = store.root / "runs" / RUNS[1] / "shards"

    def write_and_remove() -> None:
        while not is_over.is_set():
            for number in range(50):
                store.put_bytes(bytes(200 + number))
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number}.part").write_bytes(b"rows")
            for path in [*store.blobs.glob("*/*"), *folder.glob("*")]:
                path.unlink(missing_ok=True)
            shutil.rmtree(folder)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write_and_remove)
        try:
            for _ in range(300):
                assert plan_prune(store, Selection(older_than_s=DAY_S)).runs == ()
                assert inventory(store, 10).runs[0].run_id == RUNS[0]
        finally:
            is_over.set()
        writer.result()
