"""The comparison of one capture with its references: final outputs rung by rung, operators sample by sample.

This module runs in a worker process, because it computes operators again with PyTorch.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from conf.schema import OperatorTolerance
from tasks.comparison.evidence import Evidence, LoggedOperator
from tasks.comparison.metrics import Pair, compute_metrics, metric_template
from tasks.comparison.profile import profiled_events
from tasks.comparison.requantized import compare_requantized
from tasks.numerics.align import AlignedOperator
from tasks.numerics.element_use import Kernels
from tasks.numerics.io_check import check_io
from tasks.numerics.metrics import snr_db, top1
from tasks.numerics.operators import Compared, compare_operator, compare_values, to_reference_layout_and_scale
from tasks.numerics.replay import Introduced, effect_db, replay
from tasks.numerics.verdict import introduces, limits, verdict
from tasks.records import (
    Blob,
    Capture,
    Comparison,
    Gap,
    LoweredProgram,
    Operator,
    OperatorComparison,
    OtherReference,
    OutputComparison,
)
from tasks.records.keys import tensor_key
from tasks.records.options import ComparisonOptions
from tasks.records.vocabulary import COMPARED, RUNGS, Rung
from tasks.storage.store import Store

Array = NDArray[Any]
Tensors = Mapping[str, Array]
"""Tensors by the key `<sample>/<output index>` or `<sample>/<operator index>`."""

_MOST_EFFECTS = 16  # per sample: effects on the outputs are computed for this number of worst operators


def compare_capture(lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store) -> Comparison:
    """Compare final outputs with eager PyTorch, and operators with the edge graph and `options.references`.

    Raises EvidenceError if the capture does not agree with its record, and RequestError if a metric of
    `options.metrics` cannot be loaded.
    """
    exported = lowered.quantized.exported
    rungs: dict[Rung, Tensors] = {
        "exported": _read(store, exported.outputs_exported),
        "quantized": _read(store, lowered.quantized.outputs_quantized),
        "edge": _read(store, lowered.outputs_edge),
        "device": _read(store, capture.outputs),
    }
    eager = _read(store, exported.outputs_eager)
    evidence = Evidence(lowered, capture, store) if capture.etdump_debug is not None else None
    samples = tuple(OperatorComparer(lowered, evidence, options).samples()) if evidence else ()
    pairs = chain(_output_pairs(lowered, rungs, eager), *(sample.pairs for sample in samples))
    return Comparison(
        outputs=tuple(_compare_outputs(lowered, rungs, eager, options.classifier)),
        operators=tuple(row for sample in samples for row in sample.operators),
        requantized=tuple(row for sample in samples for row in sample.requantized),
        metrics=compute_metrics(options.metrics, tuple(pairs)) if options.metrics else (),
        io_checks=check_io(exported, eager, _read(store, exported.mistaken_outputs), rungs["device"]),
        profile=profiled_events(lowered, capture, store=store),
        observer_effect_snr_db=_observer_effect(capture, rungs["device"], store),
        unexpected_events=evidence.unexpected if evidence else (),
        other_references=tuple(row for sample in samples for row in sample.other_references),
    )


def _compare_outputs(
    lowered: LoweredProgram, rungs: Mapping[Rung, Tensors], eager: Tensors, classifier: bool
) -> Iterator[OutputComparison]:
    exported = lowered.quantized.exported
    previous: Rung | None = None
    for rung in RUNGS:
        for sample, name in enumerate(exported.sample_names):
            for index, output in enumerate(exported.outputs):
                key = tensor_key(sample, index)
                actual, reference = rungs[rung][key], eager[key]
                compared = compare_values(actual, reference)
                yield OutputComparison(
                    rung=rung,
                    sample=sample,
                    sample_name=name,
                    output_index=index,
                    output=output.name,
                    shape=tuple(actual.shape),
                    status=compared.status,
                    gap=compared.gap,
                    previous_rung=previous,
                    previous_snr_db=compare_values(actual, rungs[previous][key]).gap.snr_db if previous else None,
                    label=exported.labels[sample],
                    top1_reference=top1(reference) if classifier else None,
                    top1_actual=top1(actual) if classifier else None,
                )
        previous = rung


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleComparison:
    """The comparison of the operators of one sample."""

    operators: tuple[OperatorComparison, ...]  # one row per operator, against the edge graph
    requantized: tuple[OperatorComparison, ...]  # one row per requantized tensor
    other_references: tuple[OperatorComparison, ...]  # per reference: one row per operator or unclaimed node
    pairs: tuple[Pair, ...]  # the compared tensors; empty if `options.metrics` is empty


class OperatorComparer:
    """The comparison of one debug capture's operators with their references, sample by sample."""

    def __init__(self, lowered: LoweredProgram, evidence: Evidence, options: ComparisonOptions) -> None:
        self._lowered = lowered
        self._evidence = evidence
        self._options = options
        self._others = list(evidence.others(options.references))

    def samples(self) -> Iterator[SampleComparison]:
        """Compare the operators of every captured sample, in the order of the samples."""
        kernels_of_samples = self._evidence.kernels() if self._options.replay else repeat(None)
        for sample, kernels in zip(self._evidence.samples, kernels_of_samples, strict=False):
            yield self._compare(sample, kernels)

    def _compare(self, sample: int, kernels: Kernels | None) -> SampleComparison:
        logged = self._evidence.logged_operators(sample)
        captured = self._evidence.captured_values(sample) if kernels is not None else {}
        introduced: Mapping[int, Introduced] = {}
        if kernels is not None:
            requantized = self._evidence.requantized_values(sample)
            introduced = replay(kernels, captured, self._is_suspect, requantized)
        rows = [
            self._row(sample, aligned, logged, introduced.get(aligned.operator.index), kernels)
            for aligned in self._evidence.aligned(sample)
        ]
        pairs = [
            self._pair(row, logged[row.operator.index], introduced.get(row.operator.index))
            for row in (rows if self._options.metrics else ())
            if row.status in COMPARED
        ]
        others = [
            row for other, values in self._others for row in self._against(other, values, sample, logged, introduced)
        ]
        if kernels is not None:
            rows = self._with_effects(sample, rows, introduced, kernels)
        conversions = compare_requantized(self._lowered, self._evidence, sample, self._options, captured, introduced)
        return SampleComparison(
            operators=tuple(rows), requantized=tuple(conversions), other_references=tuple(others), pairs=tuple(pairs)
        )

    def _row(
        self,
        sample: int,
        aligned: AlignedOperator,
        logged: Mapping[int, LoggedOperator],
        introduced: Introduced | None,
        kernels: Kernels | None,
    ) -> OperatorComparison:
        operator = aligned.operator
        if aligned.reason is not None:
            return OperatorComparison(operator=operator, sample=sample, status=aligned.reason, gap=Gap())
        reference = self._evidence.reference(sample, operator.index)
        compared = _compare_logged(operator, logged[operator.index], reference, introduced)
        row = OperatorComparison(
            operator=operator,
            sample=sample,
            status=compared.status,
            gap=compared.gap,
            nonfinite_actual=compared.nonfinite_actual,
            nonfinite_reference=compared.nonfinite_reference,
            verdict=verdict(compared.status, compared.gap, introduced, self._limits(operator.index)),
            why=kernels.refusals.get(operator.index) if kernels else None,
        )
        if introduced is None:
            return row
        return replace(
            row,
            introduced=introduced.gap,
            introduced_steps=introduced.steps,
            masked_elements=introduced.masked,
            masked_by=self._names(introduced.masked_by),
            spans=self._names(introduced.spans),
        )

    def _pair(self, row: OperatorComparison, logged: LoggedOperator, introduced: Introduced | None) -> Pair:
        operator, expected = row.operator, logged.match.expected
        reference = self._evidence.reference(row.sample, operator.index)
        actual = to_reference_layout_and_scale(expected.quantization, expected.axis_order, logged.elements, reference)
        if introduced is not None and introduced.used_mask is not None:
            # A user's own metric may depend on the shape: replace unused elements by the reference's.
            actual = np.where(introduced.used_mask, actual, reference)
        subject = metric_template(operator, operator.output_index, row.sample, "device", "edge")
        return Pair(subject=subject, actual=actual, reference=reference, qparams=expected.quantization)

    def _against(
        self,
        other: OtherReference,
        values: Tensors,
        sample: int,
        logged: Mapping[int, LoggedOperator],
        introduced: Mapping[int, Introduced],
    ) -> Iterator[OperatorComparison]:
        """Yield one row per operator, then one row per node of the other graph that corresponds to no operator."""
        for aligned, counterpart in zip(self._evidence.aligned(sample), other.counterparts, strict=True):
            operator, status = aligned.operator, aligned.reason or counterpart.status
            compared = Compared(status="compared")
            if status is None:
                reference = values[tensor_key(sample, operator.index)]
                compared = _compare_logged(operator, logged[operator.index], reference, introduced.get(operator.index))
            yield OperatorComparison(
                operator=operator,
                sample=sample,
                status=status or compared.status,
                gap=compared.gap,
                reference=other.name,
                nodes=counterpart.nodes,
                nonfinite_actual=compared.nonfinite_actual,
                nonfinite_reference=compared.nonfinite_reference,
            )
        for node in other.unclaimed:
            yield OperatorComparison(
                operator=node, sample=sample, status="no_operator", gap=Gap(), reference=other.name, nodes=(node.name,)
            )

    def _with_effects(
        self, sample: int, rows: list[OperatorComparison], introduced: Mapping[int, Introduced], kernels: Kernels
    ) -> list[OperatorComparison]:
        """Return the rows. For the worst introduced errors, add the effects of the errors on the final outputs."""
        introducing = [row for row in rows if row.verdict == "introduced"]
        if not introducing:
            return rows
        introducing.sort(key=lambda row: row.introduced.snr_db if row.introduced.snr_db is not None else -math.inf)
        references = self._evidence.references(sample, kernels)
        effects: dict[int, float | None] = {}
        for index in (row.operator.index for row in introducing[:_MOST_EFFECTS]):
            error = introduced[index].error
            if error is not None and np.isfinite(error).all():
                effects[index] = effect_db(kernels, index, error, references)
        return [replace(row, effect_snr_db=effects.get(row.operator.index)) for row in rows]

    def _is_suspect(self, index: int, introduced: Introduced) -> bool:
        return introduces(introduced, self._limits(index))

    def _limits(self, index: int) -> OperatorTolerance:
        operator = self._lowered.operators[index]
        return limits(self._options.tolerances, self._lowered.quantized.scheme, operator.target)

    def _names(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._lowered.operators[index].name for index in indices)


def _compare_logged(
    operator: Operator, logged: LoggedOperator, reference: Array, introduced: Introduced | None
) -> Compared:
    expected, used_mask = logged.match.expected, introduced.used_mask if introduced else None
    return compare_operator(operator, expected.quantization, expected.axis_order, logged.elements, reference, used_mask)


def _output_pairs(lowered: LoweredProgram, rungs: Mapping[Rung, Tensors], eager: Tensors) -> Iterator[Pair]:
    exported = lowered.quantized.exported
    for rung, outputs in rungs.items():
        for sample, index in product(range(len(exported.sample_names)), range(len(exported.outputs))):
            key = tensor_key(sample, index)
            subject = metric_template(None, index, sample, rung, "eager")
            yield Pair(subject=subject, actual=outputs[key], reference=eager[key], qparams=None)


def _observer_effect(capture: Capture, shipping: Tensors, store: Store) -> float | None:
    """Return the lowest SNR, in dB, of the debug program's final outputs relative to those of the shipping program."""
    if capture.outputs_debug is None:
        return None
    debug = _read(store, capture.outputs_debug)
    ratios = [snr_db(output, shipping[key]) for key, output in debug.items()]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _read(store: Store, blob: Blob) -> Tensors:
    return load(store.read(blob))
