"""The comparison of values that a delegate converted to another grid, with the values before the conversion.

A conversion is no operator of the edge graph. Its total gap is against the edge graph's value of the source. Its
introduced gap is against the source's value on the device, rounded to the new grid.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from qnnsweep.tasks.comparison.evidence import Evidence, captured_value, on_own_grid
from qnnsweep.tasks.comparison.parts import error_parts
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.operators import compare_operator
from qnnsweep.tasks.numerics.replay import Replayed, converted
from qnnsweep.tasks.numerics.verdict import EVERY_SCHEME, limits, verdict
from qnnsweep.tasks.records import Gap, LoweredMethod, OperatorComparison
from qnnsweep.tasks.records.options import ComparisonOptions


def compare_requantized(
    lowered: LoweredMethod,
    evidence: Evidence,
    sample: int,
    options: ComparisonOptions,
    captured: Mapping[int, CapturedValue],
    replayed: Mapping[int, Replayed],
) -> Iterator[OperatorComparison]:
    """Yield the comparison of every requantized tensor. Elements that no reader of the source uses are left out.

    `captured`, `replayed`: the values of the sample's operators on the device, and their errors by cause.
    """
    for tensor, aligned, logged in evidence.requantized(sample):
        row = OperatorComparison(operator=tensor.operator, sample=sample, status=aligned.reason or "no_node", gap=Gap())
        if logged is None or tensor.source is None:
            yield row
            continue
        expected, operator = logged.match.expected, tensor.operator
        source_error = replayed.get(tensor.source)
        used_mask = source_error.used_mask if source_error else None
        reference = evidence.reference(sample, tensor.source)
        compared = compare_operator(
            operator, expected.quantization, expected.axis_order, logged.elements, reference, used_mask
        )
        value, source = captured_value(operator, logged), captured.get(tensor.source)
        error = None
        if value is not None and source is not None:
            error = converted(
                value, on_own_grid(source, lowered.operators[tensor.source]).dequantized(), reference, used_mask
            )
        allowed = limits(options.tolerances, EVERY_SCHEME, operator.target)
        row = replace(
            row,
            status=compared.status,
            gap=compared.gap,
            nonfinite_actual=compared.nonfinite_actual,
            nonfinite_reference=compared.nonfinite_reference,
            verdict=verdict(compared.status, compared.gap, error, allowed),
        )
        if source_error and used_mask is not None:
            names = tuple(lowered.operators[reader].name for reader in source_error.masked_by)
            row = replace(row, masked_elements=source_error.masked, masked_by=names)
        yield row if error is None else replace(row, parts=error_parts(error))
