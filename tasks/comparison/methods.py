"""The comparison of a program with several methods: the comparisons of its methods, joined.

In the joined comparison, the names of operators and outputs begin with the name of their method, and they are numbered
through all methods, in the order of the model's configuration. So every name and number is unique in the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from qnnsweep.conf.names import SHIPPED_BACKENDS
from qnnsweep.tasks.comparison.capture import ComparedSamples, compare_outputs, compare_samples, joined
from qnnsweep.tasks.comparison.profile import profiled_events
from qnnsweep.tasks.comparison.steps import compare_steps, steps_on_device
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.noise import worst_difference
from qnnsweep.tasks.numerics.token_scores import score_statistics
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram, MetricValue, Operator, StepComparison
from qnnsweep.tasks.records.methods import in_method, named_operator
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of

_NAMES = ("operator", "operators", "input", "output", "masked_by", "spans")
"""The fields of rows that name parts of a method."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedOutputs:
    """The comparison of the final outputs of every method, and of the steps of a model with states."""

    methods: tuple[Comparison, ...]
    steps: tuple[StepComparison, ...]


def compare_methods(lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store) -> Comparison:
    """Compare the capture of every method, with all parts of the comparison in this process."""
    parts = [
        (number, compare_operators(lowered, capture, options, store, number, samples))
        for number, samples in divided(capture, 1)
    ]
    return joined_methods(lowered, compare_final_outputs(lowered, capture, options, store), parts)


def divided(capture: Capture, parts: int) -> list[tuple[int, list[int]]]:
    """Return the captured samples of every method in at most `parts` parts, each with the number of its method."""
    return [
        (number, list(captured.captured[first::parts]))
        for number, captured in enumerate(capture.methods)
        for first in range(min(parts, len(captured.captured)))
    ]


def compare_final_outputs(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store
) -> ComparedOutputs:
    """Compare the final outputs of every method, and read its times; see `compare_outputs`."""
    diverged, steps = compare_steps(lowered, capture, store)
    if lowered.backend not in (*SHIPPED_BACKENDS, options.own_backend):  # a record from a store cannot choose code
        raise EvidenceError(f"the program is of the backend {lowered.backend}, which the request does not name")
    backend = backend_of(lowered.backend)
    compared = [
        replace(
            compare_outputs(method, captured, options, store, samples),
            profile=profiled_events(method, captured, backend, store),
        )
        for method, captured, samples in zip(lowered.methods, capture.methods, diverged, strict=True)
    ]
    return ComparedOutputs(methods=tuple(compared), steps=steps)


def compare_operators(
    lowered: LoweredProgram,
    capture: Capture,
    options: ComparisonOptions,
    store: Store,
    number: int,
    samples: Sequence[int],
) -> ComparedSamples:
    """Compare the operators of some samples of the method with the number `number`; see `compare_samples`."""
    steps = steps_on_device(lowered, capture, number, store)
    return compare_samples(lowered.methods[number], capture.methods[number], options, store, samples, steps)


def joined_methods(
    lowered: LoweredProgram, outputs: ComparedOutputs, parts: Sequence[tuple[int, ComparedSamples]]
) -> Comparison:
    """Return the comparison of the program. A program's only method gets no name.

    `parts`: the samples of all methods, with the numbers of their methods.
    """
    compared: list[tuple[_Method, Comparison]] = []
    operators = finals = 0
    for number, method in enumerate(lowered.methods):
        of_method = [part for other, part in parts if other == number]
        comparison = joined(outputs.methods[number], of_method)
        compared.append((_Method(method.exported.method, operators, finals), comparison))
        operators += len(method.operators)
        finals += len(method.exported.outputs)
    difference, snr_db = worst_difference(
        (comparison.observer_effect, comparison.observer_effect_snr_db) for _, comparison in compared
    )
    lists = [field.name for field in fields(Comparison) if isinstance(getattr(compared[0][1], field.name), tuple)]
    rows: dict[str, Any] = {
        name: tuple(method.of_program(row) for method, comparison in compared for row in getattr(comparison, name))
        for name in lists
    }
    rows["steps"] = outputs.steps
    rows["scores"] = score_statistics(outputs.steps)
    return Comparison(**rows, observer_effect=difference, observer_effect_snr_db=snr_db)


@dataclass(frozen=True, slots=True)
class _Method:
    name: str | None
    operators: int  # of the methods before this one
    outputs: int

    def of_program(self, row: Any) -> Any:
        """Return a row of the comparison with the names and numbers that its parts have in the whole program."""
        if isinstance(row, str):
            return in_method(row, self.name)
        if self.name is None:
            return row
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        changes = {name: self._named(value) for name, value in values.items() if name in _NAMES}
        changes |= {"method": self.name} if "method" in values else {}
        if values.get("operator_index") is not None:
            changes["operator_index"] = row.operator_index + self.operators
        is_of_operator = isinstance(row, MetricValue) and row.operator is not None
        if "output_index" in values and not is_of_operator:
            changes["output_index"] = row.output_index + self.outputs
        return replace(row, **changes)

    def _named(self, value: Any) -> Any:
        match value:
            case tuple():
                return tuple(map(self._named, value))
            case Operator():
                return named_operator(value, self.name, self.operators)
            case _:
                return None if value is None else in_method(value, self.name)
