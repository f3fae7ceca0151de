"""The stage compare: LoweredProgram + Capture -> Comparison of the device with PyTorch."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from typing import Any

from qnnsweep.tasks.comparison.methods import compare_final_outputs, compare_operators, divided, joined_methods
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import CallResult


def compare(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, *, store: Store, workers: WorkerPool
) -> Comparison:
    """Compare the outputs of every rung of the ladder with eager PyTorch, and every operator with its references.

    The operators are computed again on the host, in workers between which the samples are divided.
    Raises EvidenceError if the capture does not match its record, and ToolchainError if a worker dies.
    """
    subject = lowered.model.name, lowered.scheme, lowered.backend, *filter(None, [lowered.soc])
    given = lowered, capture, options, store
    parts = divided(capture, workers.parallel)
    silent = workers.reporting(lambda: None)  # the first call reports the start of the comparison
    calls = chain([workers.call], repeat(silent.call))

    with ThreadPoolExecutor(1 + len(parts)) as threads:  # which only wait

        def compute(function: Callable[..., Any], *more: Any) -> Future[CallResult[Any]]:
            call = partial(next(calls), "compare", subject=subject, urgent=True, compiles=False)
            return threads.submit(call, function, *given, *more)

        samples = [compute(compare_operators, *part) for part in parts]
        outputs = compute(compare_final_outputs)
        compared = [(number, part.result().value) for (number, _), part in zip(parts, samples, strict=True)]
        return joined_methods(lowered, outputs.result().value, compared)


compare_task = stage(compare, version=34)
