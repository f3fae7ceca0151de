"""The comparison of the capture of one method with its references, in parts that several processes can compute.

This module runs in worker processes, because it computes operators again with PyTorch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from safetensors.numpy import load

from qnnsweep.tasks.comparison.biases import bias_uses
from qnnsweep.tasks.comparison.dead_parts import dead_parts
from qnnsweep.tasks.comparison.details import most_important
from qnnsweep.tasks.comparison.evidence import Evidence, device_outputs
from qnnsweep.tasks.comparison.input_uses import input_uses
from qnnsweep.tasks.comparison.metrics import compute_metrics
from qnnsweep.tasks.comparison.operators import OperatorComparer, SampleComparison
from qnnsweep.tasks.comparison.outputs import FinalOutputs
from qnnsweep.tasks.comparison.steps import StepsOnDevice
from qnnsweep.tasks.numerics.bindings import worst_bindings
from qnnsweep.tasks.numerics.io_check import check_io
from qnnsweep.tasks.numerics.samples import worst_output
from qnnsweep.tasks.records import CapturedMethod, Comparison, LoweredMethod
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedSamples:
    """The comparison of the operators of some samples, and the logged tensors that belong to no operator."""

    samples: tuple[SampleComparison, ...]
    unexpected_events: tuple[str, ...]


def compare_outputs(
    lowered: LoweredMethod,
    capture: CapturedMethod,
    options: ComparisonOptions,
    store: Store,
    diverged: frozenset[int] = frozenset(),
) -> Comparison:
    """Compare the final outputs of every rung with eager PyTorch.

    `diverged`: the samples of a model with states for which the device read other tokens than eager PyTorch. Raises
    RequestError if a metric of `options.metrics` cannot be loaded.
    """
    finals = FinalOutputs.of(lowered, capture, store, diverged)
    exported = lowered.exported
    observer_effect, observer_effect_snr_db = finals.observer_effect()
    mistaken = load(store.read(exported.mistaken_outputs))
    return Comparison(
        outputs=tuple(finals.compare(options.classifier)),
        operators=(),
        unexpected_events=(),
        metrics=compute_metrics(options.metrics, tuple(finals.pairs())) if options.metrics else (),
        io_checks=(
            *check_io(
                exported, finals.eager, mistaken, finals.rungs["device"], finals.design, finals.rungs.get("edge")
            ),
            *dead_parts(lowered, finals, store),
        ),
        observer_effect=observer_effect,
        observer_effect_snr_db=observer_effect_snr_db,
        bias_uses=tuple(bias_uses(lowered, store)) if options.budget else (),
        input_uses=tuple(input_uses(lowered, store)) if options.budget else (),
    )


def compare_samples(
    lowered: LoweredMethod,
    capture: CapturedMethod,
    options: ComparisonOptions,
    store: Store,
    samples: Sequence[int] | None = None,
    steps: StepsOnDevice | None = None,
) -> ComparedSamples:
    """Compare the operators of captured samples with the edge graph and `options.references`.

    `samples`: None for all of them. `steps`: those of a model with states. Their operators are computed again on the
    inputs that the device had, and the budget is that of the error that the steps introduce.
    Raises EvidenceError if the capture does not agree with its record, and RequestError if a metric of
    `options.metrics` cannot be loaded.
    """
    evidence, device = Evidence(lowered, capture, store), device_outputs(lowered, capture.outputs, store)
    eager = load(store.read(lowered.exported.outputs_eager))
    comparable = [sample for sample in evidence.samples if steps is None or sample not in steps.diverged]
    worst = worst_output(comparable or evidence.samples, len(lowered.exported.outputs), device, eager)
    reference = eager if steps is None else steps.outputs
    comparer = OperatorComparer(lowered, evidence, options, reference, device, evidence.debug_outputs, store, worst)
    return ComparedSamples(
        samples=tuple(comparer.samples(evidence.samples if samples is None else samples)),
        unexpected_events=evidence.unexpected,
    )


def joined(outputs: Comparison, parts: Sequence[ComparedSamples]) -> Comparison:
    """Return the whole comparison. `outputs`: that of the final outputs. `parts`: all captured samples, if any."""
    samples = sorted((sample for part in parts for sample in part.samples), key=lambda sample: sample.sample)
    return replace(
        outputs,
        operators=tuple(row for sample in samples for row in sample.operators),
        requantized=tuple(row for sample in samples for row in sample.requantized),
        other_references=tuple(row for sample in samples for row in sample.other_references),
        metrics=(*outputs.metrics, *(value for sample in samples for value in sample.metrics)),
        io_checks=(*outputs.io_checks, *worst_bindings([check for sample in samples for check in sample.bindings])),
        unexpected_events=parts[0].unexpected_events if parts else (),
        budget=tuple(share for sample in samples for share in sample.budget),
        details=tuple(
            detail
            for sample in samples
            if sample.details
            for detail in most_important(sample.operators, sample.budget, sample.details)
        ),
    )
