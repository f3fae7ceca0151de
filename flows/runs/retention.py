"""What a run holds of the store, and which runs go when one has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prefect.logging import get_run_logger

from conf.schema import RetentionConfig
from tasks.errors import EnvironmentUnusable
from tasks.results.outcome import CellResult
from tasks.storage.holdings import Holdings, named_blobs
from tasks.storage.occupancy import alone
from tasks.storage.retention import Selection, planned, remove
from tasks.storage.store import Store

_DAY_S, _GIB = 86_400.0, 2**30


def holdings(cells: Iterable[CellResult], results: Mapping[str, bool], store: Store) -> Holdings:
    """All that the run's report and a `recompare` of it read: what its records name, and the logs of its errors."""
    blobs: dict[str, int] = {}
    for cell in cells:
        for record in (cell.exported, cell.quantized, cell.lowered, cell.bundle, cell.capture):
            blobs |= {blob.sha256: blob.size for blob in named_blobs(record)}
        log = getattr(cell.error, "log", None)
        if log is not None and (blob := store.find(log)) is not None:
            blobs[blob.sha256] = blob.size
    return Holdings(results=dict(results), blobs=blobs)


def retained(asked: RetentionConfig, store: Store) -> None:
    """Remove the runs that are kept no longer. While another sweep is going on it is left to that one."""
    if (asked.keep_runs, asked.keep_days, asked.max_gib) == (None, None, None):
        return
    selection = Selection(
        at_most=asked.keep_runs,
        older_than_s=None if asked.keep_days is None else asked.keep_days * _DAY_S,
        larger_than=None if asked.max_gib is None else int(asked.max_gib * _GIB),
        protected=1,
    )
    try:
        with alone(store):
            removal = planned(store, selection)
            remove(store, removal)
    except EnvironmentUnusable as error:
        get_run_logger().warning("retention: %s", error)
        return
    get_run_logger().info("retention: %d runs removed, %d bytes", len(removal.runs), removal.freed)
