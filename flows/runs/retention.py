"""The blobs that a run references in the store, and the removal of old runs after a sweep."""

from collections.abc import Iterable, Mapping

from prefect.logging import get_run_logger

from qnnsweep.conf.schema import RetentionConfig
from qnnsweep.conf.units import GIB
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.storage import lock
from qnnsweep.tasks.storage.manifest import RunManifest, referenced_blobs
from qnnsweep.tasks.storage.retention import Selection, apply, plan_prune
from qnnsweep.tasks.storage.store import Store

_DAY_S = 86_400.0


def manifest(cells: Iterable[CellResult], results: Mapping[str, bool], store: Store) -> RunManifest:
    """Return the manifest of all that a report and a `recompare` read: results, their blobs, and the logs of errors."""
    blobs: dict[str, int] = {}
    for cell in cells:
        for record in (cell.exported, cell.quantized, cell.lowered, cell.bundle, cell.capture):
            blobs |= {blob.sha256: blob.size for blob in referenced_blobs(record)}
        blobs |= {log.sha256: log.size for log in cell.case_logs}
        log = getattr(cell.error, "log", None)
        if log is not None and (blob := store.find(log)) is not None:
            blobs[blob.sha256] = blob.size
    return RunManifest(results=dict(results), blobs=blobs)


def apply_retention(config: RetentionConfig, store: Store, run_id: str) -> None:
    """Remove the runs that exceed the limits of retention. If another sweep is running, that sweep removes them.

    `run_id`: the run that has just ended. It stays, even if the clock was set back and its id is not the newest.
    """
    if (config.keep_runs, config.keep_days, config.max_gib) == (None, None, None):
        return
    selection = Selection(
        at_most=config.keep_runs,
        older_than_s=None if config.keep_days is None else config.keep_days * _DAY_S,
        larger_than=None if config.max_gib is None else int(config.max_gib * GIB),
        runs_that_stay=(run_id,),
    )
    try:
        with lock.exclusive(store):
            plan = plan_prune(store, selection)
            apply(store, plan)
    except EnvironmentUnusable as error:
        get_run_logger().warning("retention: %s", error)
        return
    for problem in plan.unreadable:
        get_run_logger().warning("retention: no result and no blob was removed: %s", problem)
    get_run_logger().info("retention: %d runs removed, %d bytes", len(plan.runs), plan.freed)
