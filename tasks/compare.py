"""The stage compare: LoweredProgram + Capture -> Comparison of the device with PyTorch."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from qnnsweep.tasks.comparison.methods import compare_final_outputs, compare_operators, divided, joined_methods
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def compare(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, *, store: Store, workers: WorkerPool
) -> Comparison:
    """Compare the outputs of every rung of the ladder with eager PyTorch, and every operator with its references.

    The operators are computed again on the host, in workers between which the samples are divided.
    Raises EvidenceError if the capture does not match its record, and ToolchainError if a worker dies.
    """
    subject = lowered.model.name, lowered.scheme, lowered.backend, *filter(None, [lowered.soc])
    compute = partial(workers.call, "compare", subject=subject, urgent=True, compiles=False)
    given = lowered, capture, options, store
    parts = divided(lowered, capture, workers.parallel)
    with ThreadPoolExecutor(1 + len(parts)) as threads:  # which only wait
        samples = [threads.submit(compute, compare_operators, *given, *part) for part in parts]
        outputs = threads.submit(compute, compare_final_outputs, *given)
        compared = [(number, part.result().value) for (number, _), part in zip(parts, samples, strict=True)]
        return joined_methods(lowered, outputs.result().value, compared)


compare_task = stage(compare, version=17)
