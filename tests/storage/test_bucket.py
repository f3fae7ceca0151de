"""Tests what concerns an object store only: its requests, its refusals, and what a failure leaves behind."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas
import pytest

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.object_store import KEY_ID, SECRET, ObjectStore, serve_object_store, serve_proxy, store_environment
from tests.storage.conftest import StoreOf

REPOSITORY = Path(__file__).parents[2]
LARGE = 50 << 20


def blob_of(data: bytes) -> Blob:
    return Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def name_of(blob: Blob) -> str:
    return f"blobs/{blob.sha256[:2]}/{blob.sha256}"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.fixture
def requests(object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the method and the name of every request from now on."""
    recorded: list[str] = []

    def note(method: str, path: str) -> None:
        recorded.append(f"{method} {path.partition('/night.ly/')[2].partition('?')[0]}")

    with serve_proxy(object_store, note) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield recorded


def test_a_blob_is_uploaded_once_and_downloaded_once_where_it_is_read(bucket: StoreOf, requests: list[str]) -> None:
    first, other = bucket("first"), bucket("other")
    data = b"weights" * 1000
    name = name_of(blob_of(data))
    requests.clear()
    blob = first.put_bytes(data)
    assert requests == [f"HEAD {name}", f"PUT {name}"]
    requests.clear()
    assert first.put_bytes(data) == other.put_bytes(data) == blob
    assert requests == [f"HEAD {name}"] * 2
    third = bucket("third")
    requests.clear()
    assert third.has(blob)
    assert third.find(blob.sha256) == blob
    assert requests == [f"HEAD {name}"] * 2
    assert files(third.root) == []
    requests.clear()
    for _ in range(2):
        assert third.read(blob) == data
    assert [request for request in requests if request.startswith("GET")] == [f"GET {name}"]


def test_a_damaged_or_missing_local_copy_is_downloaded_again(bucket: StoreOf) -> None:
    store = bucket("one")
    blob = store.put_bytes(b"evidence")
    damage(store.path(blob), b"evidencE")
    assert store.read(blob) == b"evidence"
    damage(store.path(blob), b"evidencE")
    store.verify(blob)
    assert store.path(blob).read_bytes() == b"evidence"
    damage(store.path(blob), b"evid")
    assert store.path(blob).read_bytes() == b"evidence"
    store.path(blob).unlink()
    assert store.path(blob).read_bytes() == b"evidence"
    assert list(store.partial.iterdir()) == []


@pytest.mark.parametrize("use", [Store.path, Store.read, Store.verify])
def test_a_damaged_object_is_refused_and_removed_and_leaves_no_local_copy(
    bucket: StoreOf, use: Callable[[Store, Blob], object]
) -> None:
    blob = bucket("one").put_bytes(b"evidence")
    bucket("one").files.write(name_of(blob), b"evidencE")
    other = bucket("other")
    with pytest.raises(
        EvidenceError, match=rf"^s3://.*/{blob.sha256} is damaged, its sha256 is [0-9a-f]{{64}}: run again"
    ):
        use(other, blob)
    assert (files(other.root), other.has(blob)) == ([], False)
    bucket("one").put_bytes(b"evidence")
    assert bucket("third").read(blob) == b"evidence"


def test_an_object_of_another_size_counts_as_absent_and_the_next_put_replaces_it(bucket: StoreOf) -> None:
    store = bucket("one")
    blob = store.put_bytes(b"evidence")
    store.files.write(name_of(blob), b"evid")
    assert not store.has(blob)
    store.put_bytes(b"evidence")
    assert store.has(blob)
    assert bucket("other").read(blob) == b"evidence"


def test_a_damaged_local_copy_is_never_uploaded(bucket: StoreOf) -> None:
    store = bucket("one")
    blob = store.put_bytes(b"evidence")
    store.files.remove(name_of(blob))
    damage(store.path(blob), b"evidencE")
    store.put_bytes(b"evidence")
    assert bucket("other").read(blob) == b"evidence"


def test_a_large_blob_is_never_in_memory_as_a_whole(bucket: StoreOf, tmp_path: Path) -> None:
    size = 128 << 20
    with (tmp_path / "large").open("wb") as file:
        file.truncate(size)
    program = (
        "import sys; from pathlib import Path; from qnnsweep.tasks.storage.store import Store; import pyarrow as pa\n"
        "blob = Store(Path(sys.argv[1]), sys.argv[2]).put_file(Path(sys.argv[3]))\n"
        "Store(Path(sys.argv[1] + '2'), sys.argv[2]).verify(blob)\n"
        "print(blob.size, pa.default_memory_pool().max_memory())\n"
    )
    store = bucket("one")
    argv = [sys.executable, "-c", program, str(store.root), str(store.url), str(tmp_path / "large")]
    ran = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    uploaded, peak = map(int, ran.stdout.split())
    assert uploaded == size
    assert peak < size * 5 // 8, "the memory of two pieces, and what pyarrow adds to it"


def test_a_refused_part_leaves_no_object(
    object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket("one")
    with serve_proxy(object_store, lambda _, path: 403 if "partNumber=2&" in path else None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way)
        with pytest.raises(EnvironmentUnusable, match=r"ACCESS_DENIED during UploadPart .*; check that AWS_PROFILE"):
            store.put_bytes(os.urandom(LARGE))
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.endpoint)
    assert bucket("other").files.names("blobs") == []
    assert files(store.root) == []


def test_a_killed_upload_leaves_no_object(
    object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket("one")
    reached, ended = threading.Event(), threading.Event()

    def stuck(_: str, path: str) -> int | None:
        if "partNumber=3&" in path:
            reached.set()
            ended.wait(180)
            return 403
        return None

    program = (
        "import os, sys; from pathlib import Path; from qnnsweep.tasks.storage.store import Store\n"
        "Store(Path(sys.argv[1]), sys.argv[2]).put_bytes(os.urandom(int(sys.argv[3])))\n"
    )
    with serve_proxy(object_store, stuck) as way:
        argv = [sys.executable, "-c", program, str(store.root), str(store.url), str(LARGE)]
        writer = subprocess.Popen(argv, cwd=REPOSITORY, env=os.environ | {"AWS_ENDPOINT_URL": way})
        assert reached.wait(180)
        writer.kill()
        writer.wait()
        ended.set()
    other = bucket("other")
    assert other.files.names("blobs") == []
    assert store.remove_stale_temporaries() == 1
    assert files(store.root) == []


UNUSABLE = {
    "misspelt": r"AWS Error NO_SUCH_BUCKET .*; create the bucket, or correct its name$",
    "denied": r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH) .*; check that AWS_PROFILE, ",
    "unreached": r"AWS Error NETWORK_CONNECTION .*; check that AWS_ENDPOINT_URL \(for a store that is not Amazon's\)",
}


@pytest.fixture(params=UNUSABLE)
def unusable(
    request: pytest.FixtureRequest, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Yield the URL of a bucket that cannot be used, and a pattern of the error message."""

    def reached_by(endpoint: str) -> None:
        for name, value in store_environment(endpoint).items():
            monkeypatch.setenv(name, value)

    if request.param == "denied":
        with serve_object_store(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="1") as strict:
            url = strict.create_bucket("sweeps")
            reached_by(strict.endpoint)
            yield url, UNUSABLE[request.param]
    else:
        reached_by(object_store.endpoint if request.param == "misspelt" else "http://127.0.0.1:1")
        yield "s3://seweps/nightly", UNUSABLE[request.param]


def test_a_bucket_that_cannot_be_used_is_refused_in_one_line_with_a_remedy(
    unusable: tuple[str, str], tmp_path: Path
) -> None:
    url, message = unusable
    with pytest.raises(EnvironmentUnusable) as refused:
        Store(tmp_path / "here", url).check_writable()
    line = str(refused.value)
    assert re.search(rf"^artifacts={url}: .*{message}", line), line
    assert "\n" not in line
    assert KEY_ID not in line
    assert SECRET not in line


def test_an_unusable_local_folder_is_reported_first(bucket: StoreOf, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnusable, match=r"file/blobs: Not a directory; there is a file of that name"):
        bucket("file")


def test_each_bucket_url_has_one_local_folder_below_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nightly, same = Store.at("s3://sweeps/nightly"), Store.at("s3://sweeps/nightly/")
    assert (nightly.root, nightly.url) == (same.root, same.url)
    assert nightly.url == "s3://sweeps/nightly"
    assert nightly.root.parent == tmp_path / "qnnsweep"
    assert nightly.root != Store.at("s3://sweeps/weekly").root
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Store.at("s3://sweeps/nightly").root == Path.home() / ".cache" / "qnnsweep" / nightly.root.name
    assert Store.at("s3://sweeps/nightly", "~/here").root == Path.home() / "here"
    assert files(tmp_path) == []


def test_link_named_writes_a_list_of_names_and_objects(bucket: StoreOf) -> None:
    store = bucket("one")
    blob = store.put_bytes(b"program")
    store.link_named("runs/1/files", {"toy/8a8w/program.pte": blob})
    assert bucket("other").files.read("runs/1/files.json").decode() == (
        f'{{\n "toy/8a8w/program.pte": "{name_of(blob)}"\n}}'
    )
    assert bucket("other").read_named("runs/1/files", "toy/8a8w/program.pte") == b"program"
    for folder, name in (("runs/1/files", "toy/8a8w/other.pte"), ("runs/2/files", "toy/8a8w/program.pte")):
        with pytest.raises(FileNotFoundError):
            store.read_named(folder, name)


def test_pandas_reads_all_runs_of_a_table_in_one_line(bucket: StoreOf) -> None:
    store = bucket("one")
    for run in ("20261120T020000Z-a1b2", "20261121T020000Z-c3d4"):
        tables.write(store, run, "cells", [{**dict.fromkeys(tables.schema_of("cells").names), "run_id": run}])
    frame = pandas.read_parquet(f"{store.url}/tables/cells")
    assert frame["run_id"].tolist() == ["20261120T020000Z-a1b2", "20261121T020000Z-c3d4"]


def test_a_folder_does_not_import_pyarrow(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from qnnsweep.tasks.storage.store import Store\n"
        "Store(Path(sys.argv[1])).put_bytes(b'x'); print('pyarrow' in sys.modules)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout == "False\n"
