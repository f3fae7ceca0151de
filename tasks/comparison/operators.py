"""The comparison of a capture's operators with their references, sample by sample, and the budget of their errors.

This module runs in a worker process, because it computes operators again with PyTorch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.comparison.bindings import sample_bindings
from qnnsweep.tasks.comparison.budget import SampleBudget, output_budgets
from qnnsweep.tasks.comparison.details import error_details
from qnnsweep.tasks.comparison.evidence import Evidence, LoggedOperator, SampleInputs
from qnnsweep.tasks.comparison.metrics import Pair, compute_metrics, metric_template
from qnnsweep.tasks.comparison.parts import error_parts
from qnnsweep.tasks.comparison.requantized import compare_requantized
from qnnsweep.tasks.comparison.weights import weight_errors
from qnnsweep.tasks.numerics.ablation import Outputs
from qnnsweep.tasks.numerics.align import AlignedOperator
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue, Kernels
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.introduced import Introduced
from qnnsweep.tasks.numerics.operators import Compared, compare_operator, to_reference_layout_and_scale
from qnnsweep.tasks.numerics.replay import Replayed, replay
from qnnsweep.tasks.numerics.verdict import EVERY_SCHEME, has_own_error, limits, verdict
from qnnsweep.tasks.records import (
    ErrorDetail,
    ErrorShare,
    Gap,
    IoCheck,
    LoweredMethod,
    MetricValue,
    Operator,
    OperatorComparison,
    OtherReference,
)
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.records.vocabulary import COMPARED
from qnnsweep.tasks.storage.store import Store

Array = NDArray[Any]
Tensors = Mapping[str, Array]
"""Tensors by the key `<sample>/<output index>` or `<sample>/<operator index>`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleComparison:
    """The comparison of the operators of one sample. It can be pickled."""

    sample: int
    operators: tuple[OperatorComparison, ...]  # one row per operator, against the edge graph
    requantized: tuple[OperatorComparison, ...]  # one row per requantized tensor
    other_references: tuple[OperatorComparison, ...]  # per reference: one row per operator or unclaimed node
    metrics: tuple[MetricValue, ...]  # of the compared tensors
    budget: tuple[ErrorShare, ...]  # of the final outputs of the worst sample; empty for the others
    details: Mapping[int, ErrorDetail | None]  # by operator index; empty but for the worst sample
    bindings: tuple[IoCheck, ...] = ()  # of the final outputs to their producers; empty without a replay


class OperatorComparer:
    """The comparison of one debug capture's operators with their references, sample by sample."""

    def __init__(
        self,
        lowered: LoweredMethod,
        evidence: Evidence,
        options: ComparisonOptions,
        eager: Tensors,
        device: Tensors,
        debug: Tensors,
        store: Store,
        worst: tuple[int, int],
    ) -> None:
        """`eager`, `device`, `debug`: the final outputs of all captured samples; `debug`: of the debug program.

        `worst`: the captured sample and the final output that have the most noise. This sample has a budget, of the
        results and of this output.
        """
        self._lowered = lowered
        self._evidence = evidence
        self._options = options
        self._eager, self._device, self._debug = eager, device, debug
        self._store = store
        self._worst = worst
        self._others = evidence.others(options.references)

    def samples(self, samples: Sequence[int]) -> Iterator[SampleComparison]:
        """Compare the operators of captured samples."""
        kernels_of_samples = self._evidence.kernels(samples) if self._options.replay else repeat((None, None))
        for sample, (kernels, inputs) in zip(samples, kernels_of_samples, strict=False):
            if kernels is None or inputs is None:
                yield self._compared(sample)
            else:
                yield self._replayed(sample, kernels, inputs)

    def _replayed(self, sample: int, kernels: Kernels, inputs: SampleInputs) -> SampleComparison:
        """Compare the operators of a sample, after computing them again. Only the explained sample has a budget."""
        captured = self._evidence.captured_values(sample)
        has_budget = self._options.budget and sample == self._worst[0]
        floats, unknown = self._float_constants(kernels) if has_budget else (FloatConstants(), ())
        run = DeviceRun(kernels, captured, self._evidence.requantized_values(sample, kernels.sources, captured))
        replayed = replay(
            run, self._is_suspect, partial(self._evidence.reference, sample), floats, with_errors=has_budget
        )
        final = [self._final_outputs(tensors, sample) for tensors in (self._eager, self._device)]
        bindings = sample_bindings(self._lowered, self._evidence, kernels, sample, captured, *final)
        compared = replace(self._compared(sample, captured, replayed, kernels), bindings=tuple(bindings))
        if not has_budget:
            return compared
        outputs = output_budgets(self._lowered.input_grids, run, inputs, floats, replayed, self._outputs(sample))
        budget = SampleBudget(sample=sample, outputs=outputs, unknown_weights=unknown)
        details = error_details(compared.operators, replayed, captured)
        return replace(compared, budget=tuple(budget.shares(self._lowered)), details=details)

    def _float_constants(self, kernels: Kernels) -> tuple[FloatConstants, tuple[str, ...]]:
        """Return the constants before their rounding, and the names of the operators whose float tensor is unknown."""
        weights = weight_errors(self._lowered, self._store, kernels)
        return weights.floats(kernels), weights.unknown

    def _compared(
        self,
        sample: int,
        captured: Mapping[int, CapturedValue] | None = None,
        replayed: Mapping[int, Replayed] | None = None,
        kernels: Kernels | None = None,
    ) -> SampleComparison:
        """Return the rows of a sample. `captured`, `replayed`, `kernels`: None if operators are not computed again."""
        captured, replayed, logged = captured or {}, replayed or {}, self._evidence.logged_operators(sample)
        rows = tuple(
            self._row(sample, aligned, logged, replayed.get(aligned.operator.index), kernels)
            for aligned in self._evidence.aligned(sample)
        )
        pairs = [
            self._pair(row, logged[row.operator.index], replayed.get(row.operator.index))
            for row in (rows if self._options.metrics else ())
            if row.status in COMPARED
        ]
        others = [row for other in self._others for row in self._against(other, sample, logged, replayed)]
        conversions = compare_requantized(self._lowered, self._evidence, sample, self._options, captured, replayed)
        return SampleComparison(
            sample=sample,
            operators=rows,
            requantized=tuple(conversions),
            other_references=tuple(others),
            metrics=compute_metrics(self._options.metrics, pairs) if pairs else (),
            budget=(),
            details={},
        )

    def _outputs(self, sample: int) -> Outputs:
        """Return the final outputs that have a budget."""
        outputs = sorted({*self._lowered.exported.results, self._worst[1]})
        eager, shipping, debug = (
            {output: tensors[tensor_key(sample, output)] for output in outputs if tensor_key(sample, output) in tensors}
            for tensors in (self._eager, self._device, self._debug)
        )
        return Outputs(eager=eager, shipping=shipping, debug=debug)

    def _final_outputs(self, tensors: Tensors, sample: int) -> list[Array]:
        return [tensors[tensor_key(sample, index)] for index in range(len(self._lowered.exported.outputs))]

    def _row(
        self,
        sample: int,
        aligned: AlignedOperator,
        logged: Mapping[int, LoggedOperator],
        replayed: Replayed | None,
        kernels: Kernels | None,
    ) -> OperatorComparison:
        operator = aligned.operator
        if aligned.reason is not None:
            why = self._evidence.why_not_logged(operator.index) if aligned.reason == "not_dumped" else None
            return OperatorComparison(operator=operator, sample=sample, status=aligned.reason, gap=Gap(), why=why)
        reference = self._evidence.reference(sample, operator.index)
        compared = _compare_logged(operator, logged[operator.index], reference, replayed)
        row = OperatorComparison(
            operator=operator,
            sample=sample,
            status=compared.status,
            gap=compared.gap,
            nonfinite_actual=compared.nonfinite_actual,
            nonfinite_reference=compared.nonfinite_reference,
            verdict=verdict(compared.status, compared.gap, replayed, self._limits(operator.index)),
            why=kernels.refusals.get(operator.index) if kernels else None,
        )
        if replayed is None:
            return row
        return replace(
            row,
            parts=error_parts(replayed),
            masked_elements=replayed.masked,
            masked_by=self._names(replayed.masked_by),
            spans=self._names(replayed.spans),
        )

    def _pair(self, row: OperatorComparison, logged: LoggedOperator, replayed: Replayed | None) -> Pair:
        operator, expected = row.operator, logged.match.expected
        reference = self._evidence.reference(row.sample, operator.index)
        actual = to_reference_layout_and_scale(expected.quantization, expected.axis_order, logged.elements, reference)
        if replayed is not None and replayed.used_mask is not None:
            # A user's own metric may depend on the shape: replace unused elements by the reference's.
            actual = np.where(replayed.used_mask, actual, reference)
        subject = metric_template(operator, operator.output_index, row.sample, "device", "edge")
        return Pair(subject=subject, actual=actual, reference=reference, qparams=expected.quantization)

    def _against(
        self, other: OtherReference, sample: int, logged: Mapping[int, LoggedOperator], replayed: Mapping[int, Replayed]
    ) -> Iterator[OperatorComparison]:
        """Yield one row per operator, then one row per node of the other graph that corresponds to no operator."""
        for aligned, counterpart in zip(self._evidence.aligned(sample), other.counterparts, strict=True):
            operator, status = aligned.operator, aligned.reason or counterpart.status
            compared = Compared(status="compared")
            if status is None:
                reference = self._evidence.other_value(other, sample, operator.index)
                compared = _compare_logged(operator, logged[operator.index], reference, replayed.get(operator.index))
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

    def _is_suspect(self, index: int, introduced: Introduced) -> bool:
        return has_own_error(introduced, self._limits(index))

    def _limits(self, index: int) -> OperatorTolerance:
        operator = self._lowered.operators[index]
        return limits(self._options.tolerances, EVERY_SCHEME, operator.target)

    def _names(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._lowered.operators[index].name for index in indices)


def _compare_logged(
    operator: Operator, logged: LoggedOperator, reference: Array, replayed: Replayed | None
) -> Compared:
    expected, used_mask = logged.match.expected, replayed.used_mask if replayed else None
    return compare_operator(operator, expected.quantization, expected.axis_order, logged.elements, reference, used_mask)
