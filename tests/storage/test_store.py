"""Tests that blobs are complete or absent, and that damaged ones are refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.atomic import write_atomically
from qnnsweep.tasks.storage.store import Store

REPOSITORY = Path(__file__).parents[2]


def blob_of(data: bytes) -> Blob:
    return Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


@given(data=st.binary())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_blob_is_read_back_by_its_sha256(store: Store, data: bytes) -> None:
    blob = store.put_bytes(data)
    assert blob == blob_of(data)
    assert store.read(blob) == data
    store.verify(blob)


def test_the_end_of_a_large_blob_is_read_with_little_memory(store: Store) -> None:
    blob = store.put_bytes(bytes(64 << 20) + b"the end")
    tracemalloc.start()
    try:
        assert store.read_end(blob, 7) == b"the end"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert store.read_end(store.put_bytes(b"short"), 100) == b"short"


def test_the_end_of_a_damaged_blob_is_refused(store: Store) -> None:
    blob = store.put_bytes(b"x" * 1000)
    damage(store.path(blob), b"y" + b"x" * 999)
    with pytest.raises(EvidenceError, match="damaged"):
        store.read_end(blob, 10)


def test_a_blob_is_a_read_only_file_below_the_first_two_digits_of_its_name(store: Store) -> None:
    blob = store.put_bytes(b"weights")
    path = store.path(blob)
    assert path == store.root / "blobs" / blob.sha256[:2] / blob.sha256
    assert path.stat().st_mode & 0o777 == 0o444


def test_equal_content_is_stored_once_and_no_temporary_is_left(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"same")
    assert store.put_bytes(b"same") == store.put_bytes(b"same") == store.put_file(tmp_path / "file")
    assert files(store.root) == [store.path(blob_of(b"same"))]


def test_equal_content_is_not_written_again(store: Store) -> None:
    path = store.path(store.put_bytes(b"same"))
    before = path.stat().st_ino
    store.put_bytes(b"same")
    assert path.stat().st_ino == before


def test_a_file_that_is_taken_becomes_the_blobs_file(store: Store) -> None:
    with store.scratch("lower") as folder:
        (folder / "program").write_bytes(b"program")
        written = (folder / "program").stat().st_ino
        blob = store.take_file(folder / "program")
        assert list(folder.iterdir()) == []
    assert (blob, store.read(blob)) == (blob_of(b"program"), b"program")
    assert (store.path(blob).stat().st_ino, store.path(blob).stat().st_mode & 0o777) == (written, 0o444)
    with store.scratch("lower") as folder:
        (folder / "again").write_bytes(b"program")
        assert store.take_file(folder / "again") == blob
    assert store.path(blob).stat().st_ino == written


def test_a_large_file_is_never_in_memory_as_a_whole(store: Store, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        store.verify(store.put_file(large))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_missing_source_raises_file_not_found(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        store.take_file(tmp_path / "absent")
    assert files(store.root) == []


def test_a_relative_root_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(Path("artifacts"))
    blob = store.put_bytes(b"here")
    monkeypatch.chdir("/")
    assert store.read(blob) == b"here"


def test_an_absent_blob_is_refused_with_a_remedy(store: Store) -> None:
    for use in (store.path, store.read, store.verify):
        with pytest.raises(EvidenceError, match=r"is missing: run again"):
            use(blob_of(b"never put"))


@pytest.mark.parametrize("use", [Store.path, Store.read, Store.verify])
def test_a_blob_of_another_size_is_refused_and_removed_and_the_next_put_stores_it(
    store: Store, use: Callable[[Store, Blob], object]
) -> None:
    blob = store.put_bytes(b"evidence")
    damage(store.path(blob), b"evid")
    with pytest.raises(EvidenceError, match=r"has 4 bytes instead of 8: run again to compute it again"):
        use(store, blob)
    assert (store.has(blob), store.put_bytes(b"evidence"), store.read(blob)) == (False, blob, b"evidence")
    assert store.path(blob).stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("use", [Store.read, Store.verify])
def test_a_blob_of_the_right_size_but_other_content_is_removed_and_the_next_put_stores_it(
    store: Store, tmp_path: Path, use: Callable[[Store, Blob], object]
) -> None:
    blob = store.put_bytes(b"evidence")
    damage(store.path(blob), b"evidencE")
    with pytest.raises(EvidenceError, match=r"is damaged, its sha256 is [0-9a-f]{64}: run again to compute it again"):
        use(store, blob)
    assert not store.has(blob)
    (tmp_path / "again").write_bytes(b"evidence")
    assert (store.put_file(tmp_path / "again"), store.read(blob)) == (blob, b"evidence")


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_a_name_that_is_no_sha256_never_becomes_a_path(store: Store, name: str) -> None:
    with pytest.raises(EvidenceError, match="is not a sha256: the record that names it is damaged"):
        store.path(Blob(sha256=name, size=1))


def test_a_scratch_folder_is_new_and_empty_and_is_removed_at_the_end(store: Store) -> None:
    with store.scratch("lower") as folder, store.scratch("lower") as other:
        assert folder != other
        assert (folder.name, list(folder.iterdir())) == ("lower", [])
        assert store.partial in folder.parents
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_bytes(b"x")
        (folder / "deep" / "file").chmod(0o444)
    assert list(store.partial.iterdir()) == []


def test_a_scratch_folder_is_removed_after_an_error_too(store: Store) -> None:
    def fail_half_way() -> None:
        with store.scratch("lower") as folder:
            (folder / "half").write_bytes(b"x")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_half_way()
    assert list(store.partial.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "/"])
def test_a_scratch_name_stays_inside_partial(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="one path component"), store.scratch(name):
        pass


def test_write_atomically_replaces_whole_files_and_makes_folders(store: Store) -> None:
    path = store.root / "reports" / "r1" / "report.html"
    write_atomically(path, b"old", partial=store.partial)
    write_atomically(path, b"new", partial=store.partial)
    assert files(store.root) == [path]
    assert path.read_bytes() == b"new"


def test_processes_that_write_equal_content_at_once_all_succeed(store: Store) -> None:
    program = (
        "import sys; from pathlib import Path; from qnnsweep.tasks.storage.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for i in range(100): store.read(store.put_bytes(b'%d' % i * 1000))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(store.root)], cwd=REPOSITORY, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 3
    blobs = [blob_of(b"%d" % i * 1000) for i in range(100)]
    for blob in blobs:
        store.verify(blob)
    assert files(store.root) == sorted(store.path(blob) for blob in blobs)


def test_a_store_below_a_file_is_refused_in_one_line_with_a_remedy(tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()
    advice = "there is a file of that name: move it, or set artifacts=FOLDER to another folder"
    with pytest.raises(EnvironmentUnusable) as below:
        Store(obstacle / "artifacts").check_writable()
    assert str(below.value) == f"artifacts: cannot use {obstacle}/artifacts/blobs: Not a directory; {advice}"
    with pytest.raises(EnvironmentUnusable) as itself:
        Store(obstacle).check_writable()
    assert str(itself.value) == f"artifacts: cannot use {obstacle}/blobs: Not a directory; {advice}"


def test_a_file_in_the_place_of_a_folder_is_reported_on_writes_too(store: Store) -> None:
    blob = blob_of(b"data")
    (store.blobs / blob.sha256[:2]).touch()
    with pytest.raises(EnvironmentUnusable, match=r"^artifacts: cannot use .*; there is a file of that name: move it"):
        store.put_bytes(b"data")
    assert list(store.partial.iterdir()) == []
    (store.root / "tables").touch()
    with pytest.raises(EnvironmentUnusable, match=r"^artifacts: cannot use .*; there is a file of that name: move it"):
        write_atomically(store.root / "tables" / "cells", b"data", partial=store.partial)
    assert list(store.partial.iterdir()) == []


def test_a_full_disk_is_reported_and_leaves_no_incomplete_file(store: Store) -> None:
    # A limit on file size stops a write exactly as a full disk does, without a separate disk.
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from qnnsweep.tasks.errors import EnvironmentUnusable; from qnnsweep.tasks.storage.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "store.put_bytes(bytes(50_000))\n"
        "try: store.put_bytes(bytes(50_001))\n"
        "except EnvironmentUnusable as error: print(error)\n"
    )
    writer = subprocess.run(
        [sys.executable, "-c", program, str(store.root)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert writer.stdout.startswith("artifacts: cannot use ")
    assert writer.stdout.endswith(
        ": File too large; free some space there, or set artifacts=FOLDER to a folder on another disk\n"
    )
    assert files(store.root) == [store.path(blob_of(bytes(50_000)))]


def test_link_named_links_each_name_to_its_latest_blob(store: Store) -> None:
    for data in (b"first", b"first", b"second"):
        blob = store.put_bytes(data)
        store.link_named("runs/1/files", {"toy/program.pte": blob})
        assert store.read_named("runs/1/files", "toy/program.pte") == data
        assert (store.root / "runs" / "1" / "files" / "toy" / "program.pte").samefile(store.path(blob))
    assert list(store.partial.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        store.read_named("runs/1/files", "toy/other.pte")
