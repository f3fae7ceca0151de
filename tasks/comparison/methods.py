"""The comparison of a program with several methods: the comparisons of its methods, joined.

In the joined comparison, the names of operators and outputs begin with the name of their method, and they are numbered
through all methods, in the order of the model's configuration. So every name and number is unique in the program.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from qnnsweep.tasks.comparison.capture import compare_capture
from qnnsweep.tasks.comparison.profile import profiled_events
from qnnsweep.tasks.comparison.steps import compare_steps
from qnnsweep.tasks.numerics.noise import worst_difference
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram, MetricValue, Operator
from qnnsweep.tasks.records.methods import in_method, named_operator
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of

_NAMES = ("operator", "operators", "output", "masked_by", "spans")
"""The fields of rows that name parts of a method."""


def compare_methods(lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store) -> Comparison:
    """Compare the capture of every method; see `compare_capture`. A program's only method gets no name."""
    on_device, steps = compare_steps(lowered, capture, store)
    compared: list[tuple[_Method, Comparison]] = []
    operators = outputs = 0
    for method, captured, of_steps in zip(lowered.methods, capture.methods, on_device, strict=True):
        comparison = compare_capture(method, captured, options, store, of_steps)
        profile = profiled_events(method, captured, backend_of(lowered.backend), store)
        of_method = _Method(method.exported.method, operators, outputs)
        compared.append((of_method, replace(comparison, profile=profile)))
        operators += len(method.operators)
        outputs += len(method.exported.outputs)
    difference, snr_db = worst_difference(
        (comparison.observer_effect, comparison.observer_effect_snr_db) for _, comparison in compared
    )
    lists = [field.name for field in fields(Comparison) if isinstance(getattr(compared[0][1], field.name), tuple)]
    rows: dict[str, Any] = {
        name: tuple(method.of_program(row) for method, comparison in compared for row in getattr(comparison, name))
        for name in lists
    }
    rows["steps"] = steps
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
