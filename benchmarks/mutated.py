"""The readers that benchmarks/damage.py gives mutated bytes, and the store whose files it mutates.

A reader takes the mutated bytes of one file and returns an outcome:

- `equal`: what was read equals what the undamaged file says;
- `refused`: the reader raised EvidenceError, or an error that the caller handles in the same way;
- `read`: the bytes were valid, and nothing says what they were before: bytes that a device might have sent;
- `different`: something else was read from a damaged file, and nobody was informed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob, Capture, CapturedMethod, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import decode, encode
from qnnsweep.tasks.storage.manifest import referenced_blobs
from qnnsweep.tasks.storage.store import Store, blob_name
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor
from qnnsweep.tasks.toolchain.readback.inspection import inspect_program
from qnnsweep.tasks.toolchain.readback.program_changes import program_changes
from qnnsweep.tasks.toolchain.readback.pte import read_pte

Outcome = Literal["equal", "refused", "read", "different"]
LOWERED, CAPTURE = "lower-0.parquet", "measure-0.parquet"
RECORDS, KEYS = "results/records", "results/keys"


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """A store with a lowering, its capture, both as cached results, and the tables of one run."""

    root: Path
    run_id: str
    options: ComparisonOptions

    @classmethod
    def create(
        cls,
        root: Path,
        lowered: LoweredProgram,
        capture: Capture,
        source: Store,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        options: ComparisonOptions,
    ) -> Material:
        """Write the store. `source`: the store with the blobs of both records. `rows`: by table, the rows of a run."""
        store = Store(root)
        for blob in {*referenced_blobs(lowered), *referenced_blobs(capture)}:
            store.put_bytes(source.read(blob))
        for name, record in ((LOWERED, lowered), (CAPTURE, capture)):
            store.files.write(f"{RECORDS}/{name}", encode(record))
            store.files.write(f"{KEYS}/{name}", b'{"storage_key": "%s"}' % name.encode())
        run_id = str(next(row for row in rows["cells"])["run_id"])
        for table, of_table in rows.items():
            tables.write(store, run_id, table, of_table)
        return cls(root=root, run_id=run_id, options=options)

    @property
    def store(self) -> Store:
        return Store(self.root)

    @property
    def lowered(self) -> LoweredProgram:
        record = decode(self.store.files.read(f"{RECORDS}/{LOWERED}"))
        assert isinstance(record, LoweredProgram)
        return record

    @property
    def capture(self) -> Capture:
        record = decode(self.store.files.read(f"{RECORDS}/{CAPTURE}"))
        assert isinstance(record, Capture)
        return record


@dataclass(frozen=True, slots=True)
class Reader:
    """The undamaged bytes of a file, and the function that reads mutated bytes in place of these."""

    data: bytes
    read: Callable[[bytes], Outcome]


def etdumps(material: Material) -> dict[str, Reader]:
    """Read etdumps, and their tensors against the undamaged debug buffer, as if a device had sent them."""
    buffer = np.frombuffer(_debug_buffer(material), np.uint8)

    def read(data: bytes) -> Outcome:
        try:
            for logged in read_etdump(data).tensors:
                np.array(tensor(logged, buffer))
        except EvidenceError:
            return "refused"
        return "read"

    captured = material.capture.methods[0]
    blobs = {"etdump": captured.etdump, "etdump_debug": captured.debug[0].etdump}
    return {name: Reader(material.store.read(blob), read) for name, blob in blobs.items()}


def debug_buffers(material: Material) -> dict[str, Reader]:
    """Read the tensors of the undamaged etdump from debug buffers, as if a device had sent them."""
    logged = read_etdump(material.store.read(material.capture.methods[0].debug[0].etdump)).tensors

    def read(data: bytes) -> Outcome:
        try:
            for item in logged:
                np.array(tensor(item, data))
        except EvidenceError:
            return "refused"
        return "read"

    return {"debug_buffer": Reader(_debug_buffer(material), read)}


def programs(material: Material) -> dict[str, Reader]:
    """Read programs."""

    def read(data: bytes) -> Outcome:
        try:
            read_pte(data)
        except EvidenceError:
            return "refused"
        return "read"

    return {name: Reader(data, read) for name, data in _programs(material).items()}


def diffs(material: Material) -> dict[str, Reader]:
    """Compare programs with what they were before their mutation, as `qnnsweep diff A.pte B.pte` does."""

    def reader(data: bytes) -> Reader:
        before = inspect_program(data)

        def read(mutated: bytes) -> Outcome:
            try:
                changes = program_changes(before, inspect_program(mutated))
            except EvidenceError:
                return "refused"
            return "read" if changes or mutated == data else "equal"

        return Reader(data, read)

    return {name: reader(data) for name, data in _programs(material).items()}


def _programs(material: Material) -> dict[str, bytes]:
    blobs = {
        "program": material.lowered.program,
        "program_debug": material.lowered.methods[0].debug_programs[0].program,
    }
    return {name: material.store.read(blob) for name, blob in blobs.items() if blob is not None}


def blobs(material: Material) -> dict[str, Reader]:
    """Read blobs from the store: etdumps, the debug buffer, programs, samples, references and the rest."""
    store = material.store
    named = {*referenced_blobs(material.lowered), *referenced_blobs(material.capture)}
    return {
        blob.sha256: _in_file(store, blob_name(blob.sha256), lambda blob=blob: store.read(blob))
        for blob in named
        if blob.size
    }


def records(material: Material) -> dict[str, Reader]:
    """Look up cached results whose records are mutated, as a task does."""
    return _cached(material, RECORDS)


def keys(material: Material) -> dict[str, Reader]:
    """Look up cached results whose key files are mutated, as a task does."""
    return _cached(material, KEYS)


def table_files(material: Material) -> dict[str, Reader]:
    """Read tables of a run."""
    store, run_id = material.store, material.run_id
    return {
        table: _in_file(
            store, f"tables/{table}/run={run_id}/part.parquet", lambda table=table: tables.rows(store, table, run_id)
        )
        for table in tables.TABLES
        if tables.parts(store, table, [run_id])
    }


def compared_files(material: Material) -> dict[str, Reader]:
    """Compare a capture, with its replay and budget, while one of the files that the comparison reads is mutated."""
    store, lowered, capture = material.store, material.lowered, material.capture

    def compare() -> object:
        return compare_methods(lowered, capture, material.options, store)

    (method,) = lowered.methods
    named = {
        *referenced_blobs(capture),
        *(method.reference_calls, method.reference_constants, *method.reference, method.outputs_edge),
        *(method.exported.evaluation, method.exported.outputs_eager),
    }
    return {blob.sha256: _in_file(store, blob_name(blob.sha256), compare) for blob in named if blob.size}


def compared_captures(material: Material) -> dict[str, Reader]:
    """Compare captures for which a device sent mutated files: their digests are right, so their rows may be others."""
    store, lowered, capture = material.store, material.lowered, material.capture
    options = replace(material.options, replay=False, budget=False)
    (method,), (captured,) = lowered.methods, capture.methods
    expected = [(sample, operator) for sample in captured.captured for operator in method.operators]

    def reader(blob: Blob, changed_by: Callable[[Blob], CapturedMethod]) -> Reader:
        def read(data: bytes) -> Outcome:
            mutated = store.put_bytes(data)
            try:
                changed = replace(capture, methods=(changed_by(mutated),))
                comparison = compare_methods(lowered, changed, options, store)
            except EvidenceError:
                return "refused"
            finally:
                if mutated != blob:
                    store.files.remove(blob_name(mutated.sha256))
            rows = [(row.sample, row.operator) for row in comparison.operators]
            return "read" if rows == expected else "different"

        return Reader(store.read(blob), read)

    first, *others = captured.debug
    return {
        "etdump": reader(captured.etdump, lambda blob: replace(captured, etdump=blob)),
        "etdump_debug": reader(
            first.etdump, lambda blob: replace(captured, debug=(replace(first, etdump=blob), *others))
        ),
        "debug_buffer": reader(
            first.buffer, lambda blob: replace(captured, debug=(replace(first, buffer=blob), *others))
        ),
    }


READERS: Mapping[str, Callable[[Material], dict[str, Reader]]] = {
    "etdump": etdumps,
    "debug buffer": debug_buffers,
    "program": programs,
    "diff of programs": diffs,
    "record": records,
    "key file": keys,
    "blob": blobs,
    "table": table_files,
    "comparison of damaged files": compared_files,
    "comparison of other captures": compared_captures,
}
"""By kind of mutation, the function that returns its readers by the names of the mutated files."""


def _cached(material: Material, folder: str) -> dict[str, Reader]:
    from qnnsweep.tasks.stage.result_cache import RecordSerializer, storage_blocks  # slow: it imports Prefect

    store = material.store
    key_storage, record_storage = storage_blocks(store)

    def look_up(name: str) -> tuple[bytes, Any]:
        metadata = key_storage.read_path(name)
        return metadata, RecordSerializer().loads(record_storage.read_path(name))

    return {name: _in_file(store, f"{folder}/{name}", lambda name=name: look_up(name)) for name in (LOWERED, CAPTURE)}


def _in_file(store: Store, name: str, read: Callable[[], object]) -> Reader:
    """Return a reader of a file of the store, which is written again after every reading."""
    path, data = store.root / name, store.files.read(name)
    expected = read()

    def read_mutated(mutated: bytes) -> Outcome:
        path.unlink(missing_ok=True)
        path.write_bytes(mutated)
        try:
            return "equal" if read() == expected else "different"
        except (EvidenceError, FileNotFoundError):
            return "refused"
        finally:
            path.unlink(missing_ok=True)
            path.write_bytes(data)

    return Reader(data, read_mutated)


def _debug_buffer(material: Material) -> bytes:
    return material.store.read(material.capture.methods[0].debug[0].buffer)
