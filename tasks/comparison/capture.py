"""The comparison of a method's capture with its references: final outputs by rung, operators by sample.

This module runs in a worker process, because it computes operators again with PyTorch.
"""

from itertools import chain

from safetensors.numpy import load

from qnnsweep.tasks.comparison.biases import bias_uses
from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.comparison.metrics import compute_metrics
from qnnsweep.tasks.comparison.operators import OperatorComparer
from qnnsweep.tasks.comparison.outputs import FinalOutputs
from qnnsweep.tasks.comparison.steps import DeviceSteps
from qnnsweep.tasks.numerics.io_check import check_io
from qnnsweep.tasks.records import CapturedMethod, Comparison, LoweredMethod
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.store import Store


def compare_capture(
    lowered: LoweredMethod,
    capture: CapturedMethod,
    options: ComparisonOptions,
    store: Store,
    steps: DeviceSteps | None = None,
) -> Comparison:
    """Compare final outputs with eager PyTorch, and operators with the edge graph and `options.references`.

    `steps`: the samples of a model with states. Operators are then computed again on the inputs that the device had,
    and the budget is that of the error that the steps introduce.
    Raises EvidenceError if the capture does not agree with its record, and RequestError if a metric of
    `options.metrics` cannot be loaded.
    """
    finals = FinalOutputs.of(lowered, capture, store, steps.diverged if steps else frozenset())
    exported, device = lowered.quantized.exported, finals.rungs["device"]
    evidence = Evidence(lowered, capture, store) if capture.etdump_debug is not None else None
    eager = finals.eager if steps is None else steps.outputs
    comparer = OperatorComparer(lowered, evidence, options, eager, device, store) if evidence else None
    samples = tuple(comparer.samples()) if comparer else ()
    pairs = chain(finals.pairs(), *(sample.pairs for sample in samples))
    observer_effect, observer_effect_snr_db = finals.observer_effect(capture, store)
    return Comparison(
        outputs=tuple(finals.compare(options.classifier)),
        operators=tuple(row for sample in samples for row in sample.operators),
        requantized=tuple(row for sample in samples for row in sample.requantized),
        metrics=compute_metrics(options.metrics, tuple(pairs)) if options.metrics else (),
        io_checks=check_io(exported, finals.eager, load(store.read(exported.mistaken_outputs)), device),
        observer_effect=observer_effect,
        observer_effect_snr_db=observer_effect_snr_db,
        unexpected_events=evidence.unexpected if evidence else (),
        other_references=tuple(row for sample in samples for row in sample.other_references),
        budget=tuple(comparer.budget()) if comparer else (),
        details=tuple(detail for sample in samples for detail in sample.details),
        bias_uses=tuple(bias_uses(lowered, store)) if options.budget else (),
    )
