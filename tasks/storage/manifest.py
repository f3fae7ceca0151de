"""The manifest of a run, written at its end as `holds.json`: the results and blobs that the run references."""

import dataclasses
import json
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import decode
from qnnsweep.tasks.storage.store import Store

RECORDS, KEYS = "results/records", "results/keys"
"""Two folders of the store: the cached results, and Prefect's metadata of results under the same names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunManifest:
    """The results and blobs of the store that a run references."""

    results: dict[str, bool]
    """The names of cached results (`<stage>-<key>.parquet`), each mapped to whether the run reused the result."""
    blobs: dict[str, int]
    """The blobs that the run's records and rows reference. A blob's sha256 is mapped to its size in bytes."""


def write_manifest(store: Store, run_id: str, manifest: RunManifest) -> None:
    store.files.write(_name(run_id), json.dumps(dataclasses.asdict(manifest), sort_keys=True).encode())


def read_manifest(store: Store, run_id: str) -> RunManifest:
    """Return the manifest of the run. If there is none, make one from the references in the run's evidence and rows.

    Raises EvidenceError if a file that is needed cannot be read. It is then unknown which blobs can be removed.
    """
    name = _name(run_id)
    try:
        read = json.loads(store.files.read(name))
        return RunManifest(results=dict(read["results"]), blobs=dict(read["blobs"]))
    except FileNotFoundError:
        return _from_evidence(store, run_id)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(
            f"{store.display_path(name)} cannot be read: {error}; prune that run too, with --run {run_id}"
        ) from error


def join_manifests(manifests: Iterable[RunManifest]) -> RunManifest:
    """Return the manifest of a run of which each shard has a manifest. A result is reused if every shard reused it."""
    joined = RunManifest(results={}, blobs={})
    for manifest in manifests:
        for name, reused in manifest.results.items():
            joined.results[name] = joined.results.get(name, True) and reused
        joined.blobs.update(manifest.blobs)
    return joined


def referenced_blobs(value: Any) -> Iterator[Blob]:
    """Yield every blob that a record references, at any depth."""
    if isinstance(value, Blob):
        yield value
    elif isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from referenced_blobs(item)
    elif dataclasses.is_dataclass(value):
        for name in _blob_fields(type(value)):
            yield from referenced_blobs(getattr(value, name))


@cache
def _blob_fields(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a record's class that can contain a blob. Other fields need not be searched."""
    return tuple(name for name, hint in get_type_hints(kind).items() if _can_contain_blob(hint))


def _can_contain_blob(hint: Any) -> bool:
    if hint is Blob:
        return True
    if get_origin(hint) in (tuple, Union, types.UnionType):
        return any(_can_contain_blob(argument) for argument in get_args(hint))
    return isinstance(hint, type) and dataclasses.is_dataclass(hint) and bool(_blob_fields(hint))


def _from_evidence(store: Store, run_id: str) -> RunManifest:
    blobs: dict[str, int] = {}
    for name in store.files.names(f"runs/{run_id}/files"):
        if not name.endswith(".parquet"):
            continue
        try:
            blobs |= {blob.sha256: blob.size for blob in referenced_blobs(decode(store.files.read(name)))}
        except EvidenceError as error:
            raise EvidenceError(
                f"{store.display_path(name)}: {error}; or prune that run too, with --run {run_id}"
            ) from error
    logs = {str(row["log"]) for row in tables.rows(store, "cells", run_id) if row["log"] is not None}
    blobs |= {blob.sha256: blob.size for blob in map(store.find, logs) if blob is not None}
    return RunManifest(results={}, blobs=blobs)


def _name(run_id: str) -> str:
    return f"runs/{run_id}/holds.json"
