"""The contents of a store, per stage and per run."""

from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from qnnsweep.conf.names import STAGES
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import decode
from qnnsweep.tasks.storage.manifest import read_manifest, referenced_blobs
from qnnsweep.tasks.storage.retention import bytes_of_run, present
from qnnsweep.tasks.storage.store import Store

OTHERS = "others"
"""The name of the row for blobs that no result references: logs of failures, and blobs that only runs reference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageUsage:
    """The results of a stage and the blobs that they reference.

    A blob counts only once, for the earliest of the stages that reference it. `shared_bytes` is the size of the stage's
    other blobs, which count for an earlier stage. `oldest` and `newest` are the times at which results were written
    (ISO 8601; None if there are no results).
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
    """The results that a run computed or reused, and the blobs that the run references."""

    run_id: str
    made: int
    """The number of results that the run computed."""
    reused: int
    blobs: int
    held_bytes: int
    alone_bytes: int
    """The bytes of blobs that no other run references."""
    own_bytes: int
    """The bytes of the run's tables and files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The contents of a store."""

    artifacts: str
    bytes: int
    """The bytes of results, blobs, and the tables and files of all runs."""
    stages: tuple[StageUsage, ...]
    runs: tuple[RunUsage, ...]
    """The newest runs, in the order of their ids."""


def inventory(store: Store, newest: int) -> Inventory:
    """Return the contents of the store. Every result is read. `newest`: how many of the newest runs to include.

    Raises EvidenceError for a run whose manifest cannot be read.
    """
    stages = _stages(store)
    runs = tables.runs(store)
    manifests = {run: read_manifest(store, run) for run in runs}
    reference_counts = Counter(sha256 for manifest in manifests.values() for sha256 in manifest.blobs)
    sizes = {run: bytes_of_run(store.root, run) for run in runs}
    total = sum(sizes.values()) + sum(stage.result_bytes + stage.blob_bytes for stage in stages)
    return Inventory(
        artifacts=str(store.root),
        bytes=total,
        stages=stages,
        runs=tuple(
            RunUsage(
                run_id=run,
                made=sum(not reused for reused in manifests[run].results.values()),
                reused=sum(manifests[run].results.values()),
                blobs=len(manifests[run].blobs),
                held_bytes=sum(manifests[run].blobs.values()),
                alone_bytes=sum(size for sha256, size in manifests[run].blobs.items() if reference_counts[sha256] == 1),
                own_bytes=sizes[run],
            )
            for run in (runs[-newest:] if newest else [])
        ),
    )


def _stages(store: Store) -> tuple[StageUsage, ...]:
    sizes = {path.name: stat.st_size for path, stat in present(store.blobs.glob("*/*")).items()}
    referenced: dict[str, set[str]] = defaultdict(set)
    written: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for path in (store.root / "results" / "records").glob("*"):
        stage = path.name.partition("-")[0]
        # Another process may be removing or replacing the result.
        with suppress(EvidenceError, FileNotFoundError):
            stat = path.stat()
            referenced[stage] |= {blob.sha256 for blob in referenced_blobs(decode(path.read_bytes()))} & sizes.keys()
            written[stage].append((stat.st_mtime, stat.st_size))
    referenced[OTHERS] = set(sizes)
    earlier: set[str] = set()
    usages: list[StageUsage] = []
    for stage in (*STAGES, OTHERS):
        first, shared = referenced[stage] - earlier, referenced[stage] & earlier
        times = [time for time, _ in written[stage]]
        usages.append(
            StageUsage(
                stage=stage,
                results=len(written[stage]),
                result_bytes=sum(size for _, size in written[stage]),
                blobs=len(first),
                blob_bytes=sum(sizes[sha256] for sha256 in first),
                shared_bytes=0 if stage == OTHERS else sum(sizes[sha256] for sha256 in shared),
                oldest=_when(min(times)) if times else None,
                newest=_when(max(times)) if times else None,
            )
        )
        earlier |= first
    return tuple(usages)


def _when(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
