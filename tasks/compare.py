"""compare: LoweredProgram + Capture -> Comparison. What the device computed against PyTorch, output and operator."""

from tasks.comparison.capture import compare_capture
from tasks.records import Capture, Comparison, LoweredProgram
from tasks.records.options import ComparisonOptions
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain.workers.pool import WorkerPool


def compare(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, *, store: Store, workers: WorkerPool
) -> Comparison:
    """Compare final outputs rung by rung, and every operator, in a worker process: operators run again on the host.

    Raises EvidenceError if the capture does not hold what its record says, ToolchainError if the worker dies.
    """
    return workers.call("compare", compare_capture, lowered, capture, options, store, urgent=True).value


compare_task = stage(compare, version=6)
