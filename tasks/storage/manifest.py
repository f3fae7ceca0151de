"""What a run needs of the store: written down when it ends, in `runs/<run>/holds.json`."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from tasks.errors import EvidenceError
from tasks.records import Blob
from tasks.storage import tables
from tasks.storage.codec import decode
from tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class RunManifest:
    """`results`: names of kept results (`<stage>-<key>.parquet`) to whether the run found them made; `blobs`: sha256 to
    bytes, of all that its records and its rows name."""

    results: dict[str, bool]
    blobs: dict[str, int]


def write_manifest(store: Store, run_id: str, manifest: RunManifest) -> None:
    data = json.dumps(dataclasses.asdict(manifest), sort_keys=True).encode()
    store.files.write(_name(run_id), data)


def read_manifest(store: Store, run_id: str) -> RunManifest:
    """What the run wrote down; of one that wrote nothing, what its evidence and its rows name.

    Raises EvidenceError where neither can be read: nobody knows what may be removed then.
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


def referenced_blobs(value: Any) -> Iterator[Blob]:
    """Every blob a record names, at any depth."""
    if isinstance(value, Blob):
        yield value
    elif isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from referenced_blobs(item)
    elif dataclasses.is_dataclass(value):
        for name in _leading(type(value)):
            yield from referenced_blobs(getattr(value, name))


@cache
def _leading(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a record's class through which a blob can be reached: most have thousands of values and none."""
    return tuple(name for name, hint in get_type_hints(kind).items() if _leads(hint))


def _leads(hint: Any) -> bool:
    if hint is Blob:
        return True
    if get_origin(hint) in (tuple, Union, types.UnionType):
        return any(_leads(each) for each in get_args(hint))
    return isinstance(hint, type) and dataclasses.is_dataclass(hint) and bool(_leading(hint))


def _from_evidence(store: Store, run_id: str) -> RunManifest:
    found: dict[str, int] = {}
    for name in store.files.names(f"runs/{run_id}/files"):
        if not name.endswith(".parquet"):
            continue
        try:
            found |= {blob.sha256: blob.size for blob in referenced_blobs(decode(store.files.read(name)))}
        except EvidenceError as error:
            raise EvidenceError(
                f"{store.display_path(name)}: {error}; or prune that run too, with --run {run_id}"
            ) from error
    logs = {str(row["log"]) for row in tables.rows(store, "cells", run_id) if row["log"] is not None}
    found |= {blob.sha256: blob.size for blob in map(store.find, logs) if blob is not None}
    return RunManifest(results={}, blobs=found)


def _name(run_id: str) -> str:
    return f"runs/{run_id}/holds.json"
