"""Tests the check of a store: every damaged file is named, and only what can be computed again is removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.storage import lock, tables
from qnnsweep.tasks.storage.codec import encode
from qnnsweep.tasks.storage.integrity import Damage, verify
from qnnsweep.tasks.storage.manifest import RunManifest, write_manifest
from qnnsweep.tasks.storage.retention import Selection, plan_prune
from qnnsweep.tasks.storage.store import Store
from tests.program import Program
from tests.storage.test_retention import launch

RUN, OTHER = "20260101T220000Z-0000", "20260102T220000Z-0000"
RESULT = f"lower-{1:064}.parquet"
RECORD, KEY = f"results/records/{RESULT}", f"results/keys/{RESULT}"
TABLE, MANIFEST = f"tables/cells/run={RUN}/part.parquet", f"runs/{RUN}/holds.json"
LINK = f"runs/{RUN}/files/toy/program.pte"


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with two runs, a result with its key, and two blobs, one of which a run links."""
    store = Store(tmp_path / "artifacts")
    store.check_writable()
    blob = store.put_bytes(b"the program")
    store.put_bytes(b"")
    store.files.write(RECORD, encode(launch(blob)))
    store.files.write(KEY, json.dumps({"storage_key": RESULT, "serializer": {"type": "qnnsweep-record"}}).encode())
    for run_id in (RUN, OTHER):
        tables.write(store, run_id, "cells", [dict.fromkeys(tables.schema_of("cells").names) | {"run_id": run_id}])
        manifest = RunManifest(results={RESULT: True}, blobs={blob.sha256: blob.size})
        write_manifest(store, run_id, manifest)
    store.link_named(f"runs/{RUN}/files/toy", {"program.pte": blob})
    return store


def blob_name(store: Store) -> str:
    (name,) = (name for name in store.files.names("blobs") if store.files.size(name))
    return name


def checked(store: Store, *, repair: bool = False) -> tuple[dict[str, int], list[Damage]]:
    result = verify(store, repair=repair, on_progress=lambda _done, _total: None)
    assert result.other_versions == 0
    return result.checked, list(result.damages)


def overwrite(store: Store, name: str, data: bytes) -> None:
    path = store.root / name
    path.chmod(0o644)
    with path.open("r+b") as file:  # not a new file: a damaged disk changes what all links of a file have
        file.truncate()
        file.write(data)


def flip(store: Store, name: str, bit: int) -> None:
    data = bytearray((store.root / name).read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    overwrite(store, name, bytes(data))


def test_a_whole_store_has_no_damage(store: Store) -> None:
    assert checked(store) == ({"blob": 2, "result": 1, "key": 1, "table": 2, "manifest": 2}, [])
    assert checked(store, repair=True)[1] == []


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_of_a_blob_a_result_or_a_table_is_reported(store: Store, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([blob_name(store), RECORD, TABLE]))
    whole = (store.root / name).read_bytes()
    flip(store, name, data.draw(st.integers(0, 8 * len(whole) - 1)))
    (damage,) = verify(store, repair=False, on_progress=lambda _done, _total: None).damages or [None]
    if damage is None:  # bytes between the parts of a record that nothing reads
        assert name == RECORD
    else:
        assert (damage.file, damage.repaired) == (name, False)
        assert damage.links == ((LINK,) if name.startswith("blobs/") else ())
    overwrite(store, name, whole)


DAMAGES: dict[str, bytes] = {
    RECORD: b"PAR1",
    KEY: b'{"storage_key": "other.parquet"}',
    TABLE: b"PAR1 PAR1",
    MANIFEST: b'{"results": {',
}


def test_a_repair_removes_what_can_be_computed_again_and_no_table(store: Store) -> None:
    blob = blob_name(store)
    flip(store, blob, 3)
    for name, data in DAMAGES.items():
        overwrite(store, name, data)
    _, damages = checked(store)
    assert sorted(damage.file for damage in damages) == sorted([blob, *DAMAGES])
    assert not any(damage.repaired for damage in damages)
    _, damages = checked(store, repair=True)
    assert {damage.file: damage.repaired for damage in damages} == {
        blob: True, RECORD: True, KEY: True, MANIFEST: True, TABLE: False,
    }  # fmt: skip
    assert [name for name in (blob, LINK, *DAMAGES) if (store.root / name).exists()] == [TABLE]
    assert [damage.file for damage in checked(store, repair=True)[1]] == [TABLE]
    assert checked(store)[0] == {"blob": 1, "result": 0, "key": 0, "table": 2, "manifest": 1}


def test_a_run_whose_manifest_was_removed_can_be_pruned_again(store: Store) -> None:
    overwrite(store, MANIFEST, b"[]")
    assert plan_prune(store, Selection()).unreadable != ()
    checked(store, repair=True)
    assert plan_prune(store, Selection()).unreadable == ()


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        (KEY, b"[]", "it is not the key of the result with its name"),
        (
            f"results/keys/{'lower-2.parquet'}",
            b'{"storage_key": "lower-2.parquet"}',
            "there is no result with its name",
        ),
        (MANIFEST, b'{"results": {}, "blobs": {"x": 1}}', "it does not map results to booleans, and blobs to sizes"),
        (MANIFEST, b'{"results": {"x": 1}, "blobs": {}}', "it does not map results to booleans, and blobs to sizes"),
        ("blobs/ab/README", b"hello", "its sha256 is 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
        (TABLE, b"", "cannot be read, remove it to leave its run out: it has no checksum: it is damaged, or of an"),
    ],
)
def test_the_problem_of_a_file_is_named(store: Store, name: str, data: bytes, problem: str) -> None:
    store.files.write(name, data)
    (damage,) = checked(store)[1]
    assert (damage.file, damage.problem[: len(problem)]) == (name, problem)


def test_the_file_of_a_file_server_is_not_checked(store: Store) -> None:
    store.files.write("blobs/ab/.nfs0001", b"hello")
    assert checked(store) == ({"blob": 2, "result": 1, "key": 1, "table": 2, "manifest": 2}, [])


def test_a_result_of_another_version_is_counted_and_stays(store: Store, program: Program) -> None:
    sink = pa.BufferOutputStream()
    older = pa.table({"name": ["shipping"]}).replace_schema_metadata({"qnnsweep.record": "Launch"})
    pq.write_table(older, sink)
    store.files.write(RECORD, sink.getvalue().to_pybytes())
    result = verify(store, repair=True, on_progress=lambda _done, _total: None)
    assert (result.other_versions, result.damages) == (1, ())
    code, (summary,), _ = output(program, store)
    assert (code, summary.partition("; ")[2]) == (0, "1 of another version")


def test_the_progress_counts_all_bytes(store: Store) -> None:
    progress: list[tuple[int, int]] = []
    result = verify(store, repair=False, on_progress=lambda done, total: progress.append((done, total)))
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == ((0, result.bytes), (result.bytes, result.bytes))


def output(program: Program, store: Store, *options: str) -> tuple[int, list[str], str]:
    ran = program.run("cache", "verify", *options, f"--artifacts={store.root}")
    return ran.returncode, ran.stdout.splitlines(), ran.stderr


def test_the_program_prints_one_line_per_damaged_file_and_a_summary(store: Store, program: Program) -> None:
    counts = "2 blobs, 1 result, 1 key, 2 tables, 2 manifests checked, "
    code, (summary,), error = output(program, store)
    assert (code, error) == (0, "")
    assert summary.startswith(counts)
    assert summary.endswith(": none damaged")
    flip(store, blob := blob_name(store), 3)
    overwrite(store, TABLE, b"")
    code, lines, error = output(program, store)
    assert (code, error, len(lines)) == (1, "", 3)
    assert lines[0].startswith(f"blob {store.root}/{blob}, which is also {store.root}/{LINK}: its sha256 is ")
    assert lines[0].endswith("; --repair removes it")
    assert lines[1].startswith(f"table {store.root}/{TABLE}: cannot be read, ")
    assert lines[1].endswith("; its rows cannot be computed again")
    assert lines[2].endswith(": 2 damaged")
    code, lines, _ = output(program, store, "--repair")
    assert (code, lines[0][-9:], lines[2][-22:]) == (1, "; removed", ": 2 damaged, 1 removed")
    code, (line,), _ = output(program, store, "--json")
    contents: dict[str, Any] = json.loads(line)
    assert (code, contents["artifacts"], contents["checked"]["blob"]) == (1, str(store.root), 1)
    assert [damage["file"] for damage in contents["damages"]] == [TABLE]


def test_a_repair_is_refused_while_a_sweep_runs_and_a_check_is_not(store: Store, program: Program) -> None:
    flip(store, blob := blob_name(store), 3)
    with lock.shared(store):
        code, lines, error = output(program, store, "--repair")
        assert (code, lines) == (3, [])
        assert error.startswith(f"qnnsweep: artifacts={store.root}: a sweep is running there, so nothing was removed")
        assert output(program, store)[0] == 1
    assert (store.root / blob).exists()
    assert output(program, store, "--repair")[0] == 1
    assert not (store.root / blob).exists()
