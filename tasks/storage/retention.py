"""Which runs, results and blobs may go, and their plan: nothing that a run which stays needs ever goes.

A result or a blob that a removed run held goes with it unless a run that stays, or a result of one, needs it too. One
that no run holds is what a killed sweep has left; it waits a day for somebody to continue.
"""

from __future__ import annotations

import shutil
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import EvidenceError, RequestError
from tasks.storage import tables
from tasks.storage.codec import decode
from tasks.storage.manifest import RunManifest, read_manifest, referenced_blobs
from tasks.storage.store import Store

UNREFERENCED_GRACE_S = 86_400.0
"""How long what no run holds is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which runs are to go. Each of the wishes adds to the others."""

    runs: tuple[str, ...] = ()
    """These, whatever the rest says."""
    at_most: int | None = None
    """All but the newest so many."""
    older_than_s: float | None = None
    """Those that ended longer ago."""
    larger_than: int | None = None
    """The oldest, until runs, results and blobs have no more than so many bytes together."""
    protected: int = 0
    """Never the newest so many, unless they are named in `runs`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunePlan:
    """What goes, by its name in the store."""

    runs: tuple[str, ...]
    remains: tuple[str, ...]
    """Runs that were killed before they had their rows: what there is of them."""
    results: tuple[str, ...]
    blobs: tuple[str, ...]
    freed: int
    """Bytes."""
    left: int
    """Bytes of runs, results and blobs afterwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Bytes by name; of blobs and results the time they were written too."""

    runs: dict[str, int]
    results: dict[str, tuple[int, float]]
    blobs: dict[str, tuple[int, float]]

    @property
    def total(self) -> int:
        return sum(self.runs.values()) + sum(size for size, _ in (*self.results.values(), *self.blobs.values()))


def plan_prune(store: Store, selection: Selection) -> PrunePlan:
    """What would go now. Raises RequestError for a run that there is not, and EvidenceError where one that stays does
    not say what it needs."""
    now = time.time()
    runs = tables.runs(store)
    for run in selection.runs:
        if run not in runs:
            raise RequestError(f"--run {run}: no such run in {store.root}; there are: {', '.join(runs) or 'none'}")
    sizes = _sizes(store, runs)
    gone = _gone(store, runs, selection, now)
    held: dict[str, RunManifest] = {}
    for run in runs:
        # One that is named may be damaged: what it alone held goes when it has lain about for a day.
        with suppress(*([EvidenceError] if run in selection.runs else [])):
            held[run] = read_manifest(store, run)
    free = [run for run in runs[: max(0, len(runs) - selection.protected)] if run not in gone]

    def without(oldest: int) -> PrunePlan:
        return _plan(sizes, runs, held, gone | set(free[:oldest]), store, now)

    if (most := selection.larger_than) is None:
        return without(0)

    def fits(oldest: int) -> bool:
        return without(oldest).left <= most

    # The more runs go the less is left.
    return without(bisect_left(range(len(free)), True, key=fits))


def apply(store: Store, plan: PrunePlan) -> None:
    """Remove it. Whoever kills this leaves nothing that looks whole and is not. The store is the caller's `alone`."""
    for run in (*plan.runs, *plan.remains):
        # A run is one by its cells: they go first.
        for folder in (store.root / "tables" / "cells", *(store.root / "tables").glob("*")):
            shutil.rmtree(folder / f"run={run}", ignore_errors=True)
        shutil.rmtree(store.root / "runs" / run, ignore_errors=True)
    for name in plan.results:
        for folder in ("keys", "records"):
            (store.root / "results" / folder / name).unlink(missing_ok=True)
    for sha256 in plan.blobs:
        (store.blobs / sha256[:2] / sha256).unlink(missing_ok=True)


def _gone(store: Store, runs: Sequence[str], selection: Selection, now: float) -> set[str]:
    free = runs[: max(0, len(runs) - selection.protected)]
    gone = set(selection.runs)
    if selection.at_most is not None:
        gone |= set(free[: max(0, len(runs) - selection.at_most)])
    if selection.older_than_s is not None:
        gone |= {run for run in free if now - _ended(store.root, run) > selection.older_than_s}
    return gone


def _ended(root: Path, run: str) -> float:
    return (root / "tables" / "cells" / f"run={run}").stat().st_mtime


def _plan(
    sizes: _Sizes, runs: Sequence[str], held: dict[str, RunManifest], gone: set[str], store: Store, now: float
) -> PrunePlan:
    stay = [held[run] for run in runs if run not in gone]
    let_go = [held[run] for run in runs if run in gone and run in held]
    results = _free(sizes.results, [each.results for each in stay], [each.results for each in let_go], now)
    needed: list[Mapping[str, object]] = [each.blobs for each in stay]
    # A result that stays keeps its blobs: one of a killed sweep, and one that a run which goes has made anew.
    rewritten = {name for each in let_go for name, found_made in each.results.items() if not found_made}
    settled = set[str]().union(*(each.results for each in stay)) - rewritten
    needed.append(dict.fromkeys(_blobs_of(store, set(sizes.results).difference(results, settled))))
    blobs = _free(sizes.blobs, needed, [each.blobs for each in let_go], now)
    remains = [run for run in sizes.runs if run not in runs]
    freed = sum(sizes.runs[run] for run in (*gone, *remains))
    freed += sum(sizes.results[name][0] for name in results) + sum(sizes.blobs[name][0] for name in blobs)
    return PrunePlan(
        runs=tuple(run for run in runs if run in gone),
        remains=tuple(remains),
        results=tuple(results),
        blobs=tuple(blobs),
        freed=freed,
        left=sizes.total - freed,
    )


def _free(
    sizes: Mapping[str, tuple[int, float]],
    needed: Iterable[Mapping[str, object]],
    let_go: Iterable[Mapping[str, object]],
    now: float,
) -> list[str]:
    kept = set[str]().union(*needed)
    released = set[str]().union(*let_go)
    return [
        name
        for name, (_, written) in sizes.items()
        if name not in kept and (name in released or now - written > UNREFERENCED_GRACE_S)
    ]


def _blobs_of(store: Store, results: Iterable[str]) -> Iterator[str]:
    for name in results:
        with suppress(EvidenceError, FileNotFoundError):  # it is no result for a sweep either
            record = decode((store.root / "results" / "records" / name).read_bytes())
            yield from (blob.sha256 for blob in referenced_blobs(record))


def _sizes(store: Store, runs: Iterable[str]) -> _Sizes:
    root = store.root
    begun = [path.name for path in (root / "runs").glob("*")]
    begun += [path.name.removeprefix("run=") for path in (root / "tables").glob("*/run=*")]
    records = {path.name: path.stat() for path in (root / "results" / "records").glob("*")}
    blobs = {path.name: path.stat() for path in store.blobs.glob("*/*")}
    return _Sizes(
        runs={run: own_bytes(root, run) for run in sorted({*runs, *begun})},
        results={name: (each.st_size, each.st_mtime) for name, each in records.items()},
        blobs={name: (each.st_size, each.st_mtime) for name, each in blobs.items()},
    )


def own_bytes(root: Path, run: str) -> int:
    """Of the run's tables and files, but for those that are links into the store."""
    files = [*(root / "tables").glob(f"*/run={run}/*"), *(root / "runs" / run).rglob("*")]
    stats = [path.stat() for path in files if path.is_file()]
    return sum(each.st_size for each in stats if each.st_nlink == 1)
