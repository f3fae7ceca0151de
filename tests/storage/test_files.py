"""Tests the contract of `Files` and of the store, with a folder and with an object store."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.storage.tables import schema_of
from tests.storage.conftest import StoreOf

REPOSITORY = Path(__file__).parents[2]
NAMES = ["runs/1/report.html", "tables/cells/run=1/part.parquet", "runs/1/files/a%2Fb/16 bit/%2E/ä$'.bin"]
RUN = "20261120T020000Z-a1b2"


def test_a_file_is_read_by_its_name_on_any_machine(store_of: StoreOf) -> None:
    here, there = store_of("one").files, store_of("other").files
    for name in NAMES:
        here.write(name, name.encode())
    for name in NAMES:
        assert (there.read(name), there.size(name)) == (name.encode(), len(name.encode()))
        assert there.local(name).read_bytes() == name.encode()
    assert there.names("runs") == sorted(name for name in NAMES if name.startswith("runs/"))
    assert there.names("runs/1/files/a%2Fb") == [NAMES[2]]


def test_a_missing_file_has_no_size_and_raises_file_not_found(store_of: StoreOf) -> None:
    files = store_of("one").files
    assert (files.size("runs/2/run.json"), files.names("runs"), files.names("runs/2")) == (None, [], [])
    for read in (files.read, files.local):
        with pytest.raises(FileNotFoundError):
            read("runs/2/run.json")
    files.remove("runs/2/run.json")


def test_a_name_is_no_prefix_of_another(store_of: StoreOf) -> None:
    files = store_of("one").files
    files.write("runs/10/run.json", b"ten")
    assert files.names("runs/1") == []
    assert files.size("runs/10") is None


def test_a_write_replaces_the_file_and_a_removal_leaves_nothing(store_of: StoreOf) -> None:
    here, there = store_of("one").files, store_of("other").files
    here.write("runs/1/run.json", b"a long first version")
    assert there.local("runs/1/run.json").read_bytes() == b"a long first version"
    here.write("runs/1/run.json", b"")
    assert there.read("runs/1/run.json") == there.local("runs/1/run.json").read_bytes() == b""
    here.remove("runs/1/run.json")
    assert (there.size("runs/1/run.json"), there.names("runs")) == (None, [])


def test_a_blob_that_one_machine_put_is_found_by_another(store_of: StoreOf) -> None:
    blob = store_of("one").put_bytes(b"weights")
    other = store_of("other")
    assert other.has(blob)
    assert other.find(blob.sha256) == blob
    assert other.path(blob).read_bytes() == other.read(blob) == b"weights"
    other.verify(blob)
    assert other.path(blob).stat().st_mode & 0o777 == 0o444
    assert list(other.partial.iterdir()) == []


def test_an_absent_blob_is_refused_with_a_remedy(store_of: StoreOf) -> None:
    store, blob = store_of("one"), Blob(sha256="0" * 64, size=7)
    assert (store.has(blob), store.find(blob.sha256)) == (False, None)
    for use in (store.path, store.read, store.verify):
        with pytest.raises(EvidenceError, match=f"{'0' * 64} is missing: run again"):
            use(blob)
    assert list(store.partial.iterdir()) == []


def test_a_store_can_be_pickled_and_used_after_a_fork(store_of: StoreOf) -> None:
    store = store_of("one")
    blob = store.put_bytes(b"before")
    unpickled = pickle.loads(pickle.dumps(store))
    assert unpickled.read(blob) == b"before"
    # The child is forked from a process that has used the store.
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            other = store_of("other")
            os.write(writing, other.put_bytes(other.read(blob) + b" and after").sha256.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        child_blob = store.find(pipe.read())
    assert child_blob is not None
    assert store.read(child_blob) == b"before and after"


def test_two_processes_that_write_the_same_at_once_both_succeed(store_of: StoreOf) -> None:
    program = (
        "import sys; from pathlib import Path; from qnnsweep.tasks.storage.store import Store\n"
        "from qnnsweep.tasks.storage import tables\n"
        "root, url, run = sys.argv[1:]\n"
        "store = Store(Path(root), url or None)\n"
        "for i in range(20):\n"
        "    store.read(store.put_bytes(b'%d' % i * 1000))\n"
        "    store.files.write(f'results/keys/{i}', b'%d' % i)\n"
        "tables.write(store, run, 'cells', [])\n"
    )
    stores = [store_of("one"), store_of("other")]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(store.root), store.url or "", f"{RUN}{number}"],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
        )
        for number, store in enumerate(stores)
    ]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 2
    for store in stores:
        for number in range(20):
            assert store.read(store.put_bytes(b"%d" % number * 1000)) == b"%d" % number * 1000
            assert store.files.read(f"results/keys/{number}") == b"%d" % number
        assert tables.runs(store) == [f"{RUN}0", f"{RUN}1"]
        assert list(store.partial.iterdir()) == []


def test_tables_are_read_on_any_machine(store_of: StoreOf) -> None:
    here, there = store_of("one"), store_of("other")
    row = {**dict.fromkeys(schema_of("cells").names), "run_id": RUN, "outcome": "passed"}
    tables.write(here, RUN, "cells", [row])
    assert tables.runs(there) == [RUN]
    assert [row["outcome"] for row in tables.rows(there, "cells", RUN)] == ["passed"]
    assert select(there, "cells", ["run_id", "outcome"]) == [{"run_id": RUN, "outcome": "passed"}]
    assert tables.tsv(there, "cells", RUN).splitlines()[1].startswith(RUN)


def test_a_display_path_begins_with_artifacts_as_it_was_typed(store_of: StoreOf) -> None:
    store = store_of("one")
    reopened = Store.at(store.location, str(store.root) if store.url else None)
    assert reopened.display_path("runs") == store.display_path("runs")
    assert store.display_path("runs/1/report.html") == f"{store.location}/runs/1/report.html"
    assert store.link("runs").startswith("s3://" if store.url else "file:///")
