"""The comparison of a program with several methods: the comparisons of its methods, joined.

In the joined comparison, the names of operators and outputs begin with the name of their method, and they are numbered
through all methods, in the order of the model's configuration. So every name and number is unique in the program.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from qnnsweep.tasks.comparison.capture import compare_capture
from qnnsweep.tasks.comparison.steps import compare_steps
from qnnsweep.tasks.numerics.noise import worst_difference
from qnnsweep.tasks.records import (
    BiasUse,
    Capture,
    Comparison,
    ErrorDetail,
    ErrorShare,
    LoweredProgram,
    MetricValue,
    OperatorComparison,
    OutputComparison,
    ProfiledEvent,
)
from qnnsweep.tasks.records.methods import in_method, methods_of, named_operator
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.store import Store

T = TypeVar("T")


def compare_methods(lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store) -> Comparison:
    """Compare the capture of every method; see `compare_capture`. A program's only method gets no name."""
    programs = methods_of(lowered)
    captures = methods_of(capture)
    of_methods, steps = compare_steps(programs, captures, store)
    compared = [
        compare_capture(lowered, capture, options, store, on_device)
        for lowered, capture, on_device in zip(programs, captures, of_methods, strict=True)
    ]
    names = [program.quantized.exported.method for program in programs]
    if names == [None]:
        return replace(compared[0], steps=steps)
    operators = accumulate((len(program.operators) for program in programs), initial=0)
    outputs = accumulate((len(program.quantized.exported.outputs) for program in programs), initial=0)
    methods = [_Method(*numbers) for numbers in zip(map(str, names), operators, outputs, strict=False)]
    joined = _joined([method.of_program(comparison) for method, comparison in zip(methods, compared, strict=True)])
    return replace(joined, steps=steps)


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    operators: int  # of the methods before this one
    outputs: int

    def of_program(self, comparison: Comparison) -> Comparison:
        """Return the comparison with the names and numbers that its parts have in the whole program."""
        return replace(
            comparison,
            outputs=_each(self._output, comparison.outputs),
            operators=_each(self._operator, comparison.operators),
            requantized=_each(self._operator, comparison.requantized),
            other_references=_each(self._operator, comparison.other_references),
            profile=_each(self._event, comparison.profile),
            metrics=_each(self._metric, comparison.metrics),
            unexpected_events=tuple(in_method(event, self.name) for event in comparison.unexpected_events),
            io_checks=tuple(replace(check, method=self.name) for check in comparison.io_checks),
            budget=_each(self._share, comparison.budget),
            details=_each(self._detail, comparison.details),
            bias_uses=_each(self._bias_use, comparison.bias_uses),
        )

    def _output(self, row: OutputComparison) -> OutputComparison:
        name, index = in_method(row.output, self.name), row.output_index + self.outputs
        return replace(row, method=self.name, output=name, output_index=index)

    def _operator(self, row: OperatorComparison) -> OperatorComparison:
        return replace(
            row,
            operator=named_operator(row.operator, self.name, self.operators),
            masked_by=tuple(in_method(name, self.name) for name in row.masked_by),
            spans=tuple(in_method(name, self.name) for name in row.spans),
        )

    def _event(self, event: ProfiledEvent) -> ProfiledEvent:
        operators = (named_operator(operator, self.name, self.operators) for operator in event.operators)
        return replace(event, method=self.name, operators=tuple(operators))

    def _metric(self, value: MetricValue) -> MetricValue:
        if value.operator is None or value.operator_index is None:
            return replace(value, method=self.name, output_index=value.output_index + self.outputs)
        name, index = in_method(value.operator, self.name), value.operator_index + self.operators
        return replace(value, method=self.name, operator=name, operator_index=index)

    def _share(self, share: ErrorShare) -> ErrorShare:
        index = share.operator_index
        return replace(
            share,
            method=self.name,
            output_index=share.output_index + self.outputs,
            output=in_method(share.output, self.name),
            operator=None if share.operator is None else in_method(share.operator, self.name),
            operator_index=None if index is None else index + self.operators,
        )

    def _detail(self, detail: ErrorDetail) -> ErrorDetail:
        name, index = in_method(detail.operator, self.name), detail.operator_index + self.operators
        return replace(detail, method=self.name, operator=name, operator_index=index)

    def _bias_use(self, use: BiasUse) -> BiasUse:
        return replace(use, operator_index=use.operator_index + self.operators)


def _joined(comparisons: Sequence[Comparison]) -> Comparison:
    difference, snr_db = worst_difference(
        (comparison.observer_effect, comparison.observer_effect_snr_db) for comparison in comparisons
    )
    return Comparison(
        outputs=_chained(comparison.outputs for comparison in comparisons),
        operators=_chained(comparison.operators for comparison in comparisons),
        requantized=_chained(comparison.requantized for comparison in comparisons),
        profile=_chained(comparison.profile for comparison in comparisons),
        observer_effect=difference,
        observer_effect_snr_db=snr_db,
        metrics=_chained(comparison.metrics for comparison in comparisons),
        unexpected_events=_chained(comparison.unexpected_events for comparison in comparisons),
        io_checks=_chained(comparison.io_checks for comparison in comparisons),
        other_references=_chained(comparison.other_references for comparison in comparisons),
        budget=_chained(comparison.budget for comparison in comparisons),
        details=_chained(comparison.details for comparison in comparisons),
        bias_uses=_chained(comparison.bias_uses for comparison in comparisons),
    )


def _chained(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(item for part in parts for item in part)


def _each(change: Callable[[T], T], items: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(map(change, items))
