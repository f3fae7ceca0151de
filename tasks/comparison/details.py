"""The details of the errors that matter: those of the operators with the largest shares or with a bad verdict."""

from collections.abc import Mapping, Sequence

import numpy as np

from qnnsweep.tasks.numerics.dequantize import step_sizes
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.error_distribution import error_distribution
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import ErrorDetail, ErrorShare, OperatorComparison, Quantization
from qnnsweep.tasks.records.vocabulary import Verdict

MOST_DETAILS = 40
"""The largest number of operators per cell whose errors are described in detail."""
_BAD: tuple[Verdict, ...] = ("introduced", "contradicted", "biased", "grid")


def error_details(
    rows: Sequence[OperatorComparison], replayed: Mapping[int, Replayed], captured: Mapping[int, CapturedValue]
) -> dict[int, ErrorDetail | None]:
    """Return the details of the operators of one sample, by operator index; None for an operator without an error.

    `rows`: the sample's rows of the edge graph. `replayed`, `captured`: their errors by cause, and their values.
    """
    by_index = {row.operator.index: row for row in rows}
    known = [index for index in by_index if index in replayed and index in captured]
    return {index: _detail(by_index[index], replayed[index], captured[index].qparams) for index in known}


def most_important(
    rows: Sequence[OperatorComparison], shares: Sequence[ErrorShare], details: Mapping[int, ErrorDetail | None]
) -> list[ErrorDetail]:
    """Return the details of the operators that matter most on one sample, the most important first."""
    # An operator with a bad verdict may have a small share of the error, but its reader asks why the verdict is bad.
    shared = [share.operator_index for share in shares if share.operator_index is not None and share.share]
    bad = sorted((row for row in rows if row.verdict in _BAD), key=lambda row: _BAD.index(row.verdict))
    ranked = [*shared[: MOST_DETAILS // 2], *(row.operator.index for row in bad), *shared[MOST_DETAILS // 2 :]]
    known = [index for index in dict.fromkeys(ranked) if index in details][:MOST_DETAILS]
    return [detail for index in known if (detail := details[index]) is not None]


def _detail(row: OperatorComparison, replayed: Replayed, qparams: Quantization | None) -> ErrorDetail | None:
    parts, used = list(replayed.errors.values()), replayed.used_mask
    if not parts:
        return None
    error = parts[0]
    for part in parts[1:]:
        error = error + part
    errors = error if used is None else error[used]  # as in the row of the operator
    if not errors.size or not np.isfinite(errors).all():
        return None
    ends: Sequence[float | None] = (None, None)
    if qparams is not None:
        error = np.asarray(error / step_sizes(qparams, error.shape).astype(np.float32))
        ends = _grid_ends(qparams)
    use = replayed.grid_use
    return ErrorDetail(
        operator=row.operator.name,
        operator_index=row.operator.index,
        sample=row.sample,
        unit="value" if qparams is None else "steps",
        distribution=error_distribution(error, used),
        value_least=use.least if use else None,
        value_largest=use.largest if use else None,
        grid_least=ends[0],
        grid_largest=ends[1],
    )


def _grid_ends(qparams: Quantization) -> tuple[float, float]:
    """Return the least and the largest value on a grid. Of several channels, the widest grid counts."""
    codes = np.array([[qparams.quant_min], [qparams.quant_max]], np.float64)
    least, largest = (codes - np.array(qparams.zero_point)) * np.array(qparams.scale)
    return float(least.min()), float(largest.max())
