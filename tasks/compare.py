"""The stage compare: LoweredProgram + Capture -> Comparison of the device with PyTorch."""

from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def compare(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, *, store: Store, workers: WorkerPool
) -> Comparison:
    """Compare the outputs of every rung of the ladder with eager PyTorch, and every operator with its references.

    The comparison runs in a worker process, which executes the operators again on the host.
    Raises EvidenceError if the capture does not match its record, and ToolchainError if the worker dies.
    """
    subject = lowered.model.name, lowered.scheme, lowered.backend, *filter(None, [lowered.soc])
    inputs = lowered, capture, options, store
    return workers.call("compare", compare_methods, *inputs, subject=subject, urgent=True, compiles=False).value


compare_task = stage(compare, version=17)
