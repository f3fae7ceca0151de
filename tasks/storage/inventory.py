"""What a store holds: by the stage whose results name it, and by the run that needs it."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from conf.names import CACHED_STAGES
from tasks.errors import EvidenceError
from tasks.storage import tables
from tasks.storage.codec import decode
from tasks.storage.manifest import RunManifest, read_manifest, referenced_blobs
from tasks.storage.retention import own_bytes
from tasks.storage.store import Store

OTHERS = "others"
"""What no result names: logs of what failed, and what a run alone holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageUsage:
    """A blob counts for the first stage that names it; `shared_bytes` are of those that a stage before named already.

    `oldest` and `newest` are when results were written, ISO 8601; None without one.
    """

    stage: str
    results: int
    result_bytes: int
    blobs: int
    blob_bytes: int
    shared_bytes: int
    oldest: str | None
    newest: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunUsage:
    """How many results a run made and found made, the blobs it holds, and those that no other run holds."""

    run_id: str
    made: int
    reused: int
    blobs: int
    held_bytes: int
    alone_bytes: int
    own_bytes: int
    """Of its tables and files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    artifacts: str
    bytes: int
    """Of results, blobs, and the tables and files of all runs."""
    stages: tuple[StageUsage, ...]
    runs: tuple[RunUsage, ...]
    """The newest, in the order of their ids."""


def inventory(store: Store, newest: int) -> Inventory:
    """Read every result. Raises EvidenceError for a run that does not say what it holds."""
    stages = _stages(store)
    runs = tables.runs(store)
    held = {run: read_manifest(store, run) for run in runs}
    holders = Counter(sha256 for each in held.values() for sha256 in each.blobs)
    own = {run: own_bytes(store.root, run) for run in runs}
    total = sum(own.values()) + sum(each.result_bytes + each.blob_bytes for each in stages)
    shown = runs[-newest:] if newest else []
    return Inventory(
        artifacts=str(store.root),
        bytes=total,
        stages=stages,
        runs=tuple(_run(run, held, holders, own[run]) for run in shown),
    )


def _stages(store: Store) -> tuple[StageUsage, ...]:
    sizes = {path.name: path.stat().st_size for path in store.blobs.glob("*/*")}
    named: dict[str, set[str]] = defaultdict(set)
    written: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for path in (store.root / "results" / "records").glob("*"):
        stage = path.name.partition("-")[0]
        # Another sweep may just remove or mend it.
        with suppress(EvidenceError, FileNotFoundError):
            stat = path.stat()
            named[stage] |= {blob.sha256 for blob in referenced_blobs(decode(path.read_bytes()))} & sizes.keys()
            written[stage].append((stat.st_mtime, stat.st_size))
    named[OTHERS] = set(sizes)
    before: set[str] = set()
    found: list[StageUsage] = []
    for stage in (*CACHED_STAGES, OTHERS):
        first, shared = named[stage] - before, named[stage] & before
        times = [time for time, _ in written[stage]]
        found.append(
            StageUsage(
                stage=stage,
                results=len(written[stage]),
                result_bytes=sum(size for _, size in written[stage]),
                blobs=len(first),
                blob_bytes=sum(sizes[each] for each in first),
                shared_bytes=0 if stage == OTHERS else sum(sizes[each] for each in shared),
                oldest=_when(min(times)) if times else None,
                newest=_when(max(times)) if times else None,
            )
        )
        before |= first
    return tuple(found)


def _run(run: str, held: dict[str, RunManifest], holders: Counter[str], own: int) -> RunUsage:
    mine = held[run]
    return RunUsage(
        run_id=run,
        made=sum(not found for found in mine.results.values()),
        reused=sum(mine.results.values()),
        blobs=len(mine.blobs),
        held_bytes=sum(mine.blobs.values()),
        alone_bytes=sum(size for sha256, size in mine.blobs.items() if holders[sha256] == 1),
        own_bytes=own,
    )


def _when(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
