"""compare: LoweredProgram + Capture -> Comparison. What the device computed against PyTorch, output and operator."""

from __future__ import annotations

from conf.schema import ToleranceConfig
from tasks.comparison.capture import compare_capture
from tasks.records import Capture, Comparison, LoweredProgram
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain.workers.pool import WorkerPool


def compare(
    lowered: LoweredProgram,
    capture: Capture,
    classifier: bool,
    tolerance: ToleranceConfig,
    replayed: bool,
    metrics: tuple[str, ...] = (),
    references: tuple[str, ...] = (),
    _code: str = "",
    *,
    store: Store,
    workers: WorkerPool,
) -> Comparison:
    """Final outputs rung by rung, every operator total and introduced, in a worker: operators run again on the host.

    `_code`, for the cache key alone: digest of what stands behind metrics of the user's own.
    Raises EvidenceError when the capture does not hold what its record says, ToolchainError when the worker dies.
    """
    judged = (classifier, tolerance, replayed, store, metrics, references)
    return workers.call("compare", compare_capture, lowered, capture, *judged, urgent=True).value


compare_task = stage(compare, version=5)
