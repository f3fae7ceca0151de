"""The removal of runs, results and blobs. Nothing that a remaining run references is ever removed.

A removed run's results and blobs are removed too, except those that are still referenced by a remaining run or by a
result of a remaining run. A result or a blob that no run references comes from a killed sweep. It is kept for a day, so
that the sweep can be continued. The files of a run without rows are kept for a day too: the run may be a sweep whose
shards run on other machines.
"""

import os
import shutil
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG

from qnnsweep.conf.errors import there_are
from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError, RequestError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import decode
from qnnsweep.tasks.storage.manifest import RunManifest, read_manifest, referenced_blobs
from qnnsweep.tasks.storage.store import Store

UNREFERENCED_GRACE_S = 86_400.0
"""The time for which unreferenced results and blobs, and the files of incomplete runs, are kept."""


CLOCK_TOLERANCE_S = 300.0
"""The difference between the clocks of two hosts, or of a host and its file server, that is not an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The runs to remove. A run is removed if one of the fields above `protected` selects it."""

    runs: tuple[str, ...] = ()
    """Runs to remove in any case."""
    at_most: int | None = None
    """The number of newest runs to keep. All other runs are selected."""
    older_than_s: float | None = None
    """Runs that ended more than this number of seconds ago."""
    larger_than: int | None = None
    """The maximum size of runs, results and blobs together, in bytes. The oldest runs are selected to reach it."""
    protected: int = 0
    """The number of newest runs that are not removed, unless `runs` contains them."""
    runs_that_stay: tuple[str, ...] = ()
    """Runs that are not removed, whatever their age. `runs` must not contain them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunePlan:
    """The runs, results and blobs to remove, by name."""

    runs: tuple[str, ...]
    remains: tuple[str, ...]
    """Runs that were killed before their rows were written, a day or longer ago. Their files are removed."""
    results: tuple[str, ...]
    blobs: tuple[str, ...]
    freed: int
    """The number of bytes that are removed."""
    left: int
    """The number of bytes of all runs, results and blobs that remain after the removal."""
    unreadable: tuple[str, ...]
    """A line for every remaining run whose references cannot be read. It may need any result and any blob."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """The sizes in bytes, by name. A result or a blob has a pair: its size, and the time at which it was written."""

    runs: dict[str, int]
    results: dict[str, tuple[int, float]]
    blobs: dict[str, tuple[int, float]]


def plan_prune(store: Store, selection: Selection) -> PrunePlan:
    """Return the runs, results and blobs that would be removed now. Other processes may write and remove meanwhile.

    If the references of a remaining run cannot be read, every result and blob is kept, and no run is selected by size,
    because it would free nothing. Raises RequestError for an unknown run.
    Raises EnvironmentUnusable if runs are selected by age and some run lies in the future.
    """
    now = time.time()
    runs = tables.runs(store)
    for run in selection.runs:
        if run not in runs:
            raise RequestError(f"--run {run}: no such run in {store.root}; {there_are(runs)}")
    sizes = _sizes(store, runs)
    free = [run for run in runs[: max(0, len(runs) - selection.protected)] if run not in selection.runs_that_stay]
    selected = set(selection.runs)
    if selection.at_most is not None:
        beyond = max(0, len(runs) - selection.at_most)
        selected |= set(free[:beyond])
    if selection.older_than_s is not None:
        folders = present(store.root / "tables" / "cells" / f"run={run}" for run in runs)
        ended = {path.name.removeprefix("run="): stat.st_mtime for path, stat in folders.items()}
        _check_clock(ended, now)
        selected |= {run for run in free if now - ended.get(run, now) > selection.older_than_s}
    manifests: dict[str, RunManifest] = {}
    unreadable: dict[str, str] = {}
    for run in runs:
        try:
            manifests[run] = read_manifest(store, run)
        except EvidenceError as error:
            # If this run is removed, blobs that only this run references are removed when they are a day old.
            unreadable[run] = " ".join(str(error).split())
    free = [run for run in free if run not in selected]

    def without(oldest: int) -> PrunePlan:
        return _plan(sizes, runs, manifests, unreadable, selected | set(free[:oldest]), store, now)

    if (most := selection.larger_than) is None or unreadable.keys() - selected:
        return without(0)
    # Find the smallest number of runs by bisection: the more runs are removed, the fewer bytes are left.
    return without(bisect_left(range(len(free)), True, key=lambda oldest: without(oldest).left <= most))


def _check_clock(ended: Mapping[str, float], now: float) -> None:
    """Raise EnvironmentUnusable for a run that started or ended after `now`: then no age can be relied on."""
    for run, time_s in ended.items():
        with suppress(ValueError):  # an id that does not start with a time
            started = datetime.strptime(run.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            time_s = max(time_s, started.timestamp())
        if time_s > now + CLOCK_TOLERANCE_S:
            raise EnvironmentUnusable(
                f"run {run} is of {datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC, which is in the future, so "
                "the age of no run is certain and nothing was removed",
                remedy=f"correct the clock of this machine, or remove that run with `qnnsweep cache prune --run {run}`",
            )


def apply(store: Store, plan: PrunePlan) -> None:
    """Remove what the plan contains. The caller must hold the store's exclusive lock.

    If the process is killed during the removal, no partly removed run or result looks complete.
    """
    for run in (*plan.runs, *plan.remains):
        # A run counts as complete if its cells exist: remove them first.
        for folder in (store.root / "tables" / "cells", *(store.root / "tables").glob("*")):
            shutil.rmtree(folder / f"run={run}", ignore_errors=True)
        shutil.rmtree(store.root / "runs" / run, ignore_errors=True)
    for name in plan.results:
        for folder in ("keys", "records"):
            (store.root / "results" / folder / name).unlink(missing_ok=True)
    for sha256 in plan.blobs:
        (store.blobs / sha256[:2] / sha256).unlink(missing_ok=True)


def _plan(
    sizes: _Sizes,
    runs: Sequence[str],
    manifests: Mapping[str, RunManifest],
    unreadable: Mapping[str, str],
    gone: set[str],
    store: Store,
    now: float,
) -> PrunePlan:
    problems = tuple(line for run, line in unreadable.items() if run not in gone)
    remaining = [manifests[run] for run in runs if run not in gone and run in manifests]
    removed = [manifests[run] for run in runs if run in gone and run in manifests]
    results = _unreferenced(
        sizes.results, [manifest.results for manifest in remaining], [manifest.results for manifest in removed], now
    )
    references: list[Mapping[str, object]] = [manifest.blobs for manifest in remaining]
    # The blobs of a remaining result are kept even if no remaining manifest lists them: the result may come from a
    # killed sweep, or a removed run may have recomputed it.
    recomputed = {name for manifest in removed for name, reused in manifest.results.items() if not reused}
    listed = set[str]().union(*(manifest.results for manifest in remaining)) - recomputed
    references.append(dict.fromkeys(_blobs_of(store, set(sizes.results).difference(results, listed))))
    blobs = _unreferenced(sizes.blobs, references, [manifest.blobs for manifest in removed], now)
    if problems:
        results, blobs = [], []
    remains = [
        run for run in sizes.runs if run not in runs and now - _last_written(store.root, run) > UNREFERENCED_GRACE_S
    ]
    freed = sum(sizes.runs[run] for run in (*gone, *remains))
    freed += sum(sizes.results[name][0] for name in results) + sum(sizes.blobs[name][0] for name in blobs)
    total = sum(sizes.runs.values()) + sum(size for size, _ in (*sizes.results.values(), *sizes.blobs.values()))
    return PrunePlan(
        runs=tuple(run for run in runs if run in gone),
        remains=tuple(remains),
        results=tuple(results),
        blobs=tuple(blobs),
        freed=freed,
        left=total - freed,
        unreadable=problems,
    )


def _unreferenced(
    sizes: Mapping[str, tuple[int, float]],
    remaining: Iterable[Mapping[str, object]],
    removed: Iterable[Mapping[str, object]],
    now: float,
) -> list[str]:
    referenced = set[str]().union(*remaining)
    released = set[str]().union(*removed)
    return [
        name
        for name, (_, written) in sizes.items()
        if name not in referenced and (name in released or now - written > UNREFERENCED_GRACE_S)
    ]


def _blobs_of(store: Store, results: Iterable[str]) -> Iterator[str]:
    for name in results:
        with suppress(EvidenceError, FileNotFoundError):  # a sweep ignores an unreadable result too
            record = decode((store.root / "results" / "records" / name).read_bytes())
            yield from (blob.sha256 for blob in referenced_blobs(record))


def _sizes(store: Store, runs: Iterable[str]) -> _Sizes:
    root = store.root
    started = [path.name for path in (root / "runs").glob("*") if path.is_dir()]
    started += [path.name.removeprefix("run=") for path in (root / "tables").glob("*/run=*")]
    return _Sizes(
        runs={run: bytes_of_run(root, run) for run in sorted({*runs, *started})},
        results=_sizes_and_times((root / "results" / "records").glob("*")),
        blobs=_sizes_and_times(store.blobs.glob("*/*")),
    )


def _sizes_and_times(paths: Iterable[Path]) -> dict[str, tuple[int, float]]:
    return {path.name: (stat.st_size, stat.st_mtime) for path, stat in present(paths).items()}


def _last_written(root: Path, run: str) -> float:
    """Return the time of the last change to the run's tables, files and folders, in seconds since the epoch."""
    folders = [root / "runs" / run, *(root / "tables").glob(f"*/run={run}")]
    inside = [path for folder in folders for path in (folder, *_files_and_folders(folder))]
    return max((stat.st_mtime for stat in present(inside).values()), default=time.time())


def bytes_of_run(root: Path, run: str) -> int:
    """Return the size in bytes of the run's tables and files, without the files that are hard links to blobs."""
    folders = [root / "runs" / run, *(root / "tables").glob(f"*/run={run}")]
    stats = present(path for folder in folders for path in _files_and_folders(folder)).values()
    return sum(stat.st_size for stat in stats if S_ISREG(stat.st_mode) and stat.st_nlink == 1)


def present(paths: Iterable[Path]) -> dict[Path, os.stat_result]:
    """Return the status of these files and folders, without those that another process has removed or renamed."""
    stats: dict[Path, os.stat_result] = {}
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            stats[path] = path.stat()
    return stats


def _files_and_folders(folder: Path) -> Iterator[Path]:
    """Yield all that is below a folder. A folder that is removed meanwhile, or does not exist, is empty."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))
