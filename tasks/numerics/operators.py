"""One operator's tensor from a device against the reference's: status first, then the gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import EvidenceError
from tasks.numerics.dequantize import dequantize, undo_layout
from tasks.numerics.metrics import gap
from tasks.records import Gap, Operator, Quantization
from tasks.records.vocabulary import COMPARED, OperatorStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One tensor's status and gap, and how many elements of either side are infinite or NaN."""

    status: OperatorStatus
    gap: Gap = field(default_factory=Gap)
    nonfinite_actual: int = 0
    nonfinite_reference: int = 0


def compare_operator(
    operator: Operator,
    dumped_quantization: Quantization | None,
    axis_order: Sequence[int] | None,
    captured: NDArray[Any],
    reference: NDArray[Any],
    used_mask: NDArray[np.bool_] | None = None,
) -> Compared:
    """Bring `captured` to the reference's world by the dumped tensor's metadata, then compare.

    Layout is undone first, since a per-channel axis is counted in PyTorch's. Integer codes become reals only where the
    reference is real: an integer reference holds codes or indices of its own. Nothing is ever reshaped. Infinities
    and NaNs that agree in place and kind are left out of the gap. Without a comparison the gap is empty.
    `used_mask`: the elements that some reader uses, None for all; the others are left out and the status is `masked`.
    Raises EvidenceError if `reference` is not of the operator's shape, or the metadata does not fit the tensor.
    """
    if operator.shape != reference.shape:
        raise EvidenceError(
            f"the reference of {operator.name} has shape {reference.shape}, the operator table says {operator.shape}"
        )
    if axis_order is not None and len(axis_order) != captured.ndim:
        return Compared(status="shape_differs")
    if undo_layout(captured, axis_order).shape != reference.shape:
        return Compared(status="shape_differs")
    if captured.dtype.kind in "iu" and reference.dtype.kind == "f" and dumped_quantization is None:
        return Compared(status="dtype_differs")
    actual = to_reference_layout_and_scale(dumped_quantization, axis_order, captured, reference)
    if used_mask is None:
        return compare_values(actual, reference)
    found = compare_values(actual[used_mask], reference[used_mask])
    return replace(found, status="masked") if found.status in COMPARED else found


def to_reference_layout_and_scale(
    dumped_quantization: Quantization | None,
    axis_order: Sequence[int] | None,
    captured: NDArray[Any],
    reference: NDArray[Any],
) -> NDArray[Any]:
    """`captured` in PyTorch's layout, its codes as reals where `reference` is real."""
    actual = np.ascontiguousarray(undo_layout(captured, axis_order))  # of codes, which are smaller than reals
    codes = actual.dtype.kind in "iu" and reference.dtype.kind == "f"
    return dequantize(actual, dumped_quantization) if codes and dumped_quantization is not None else actual


def compare_values(actual: NDArray[Any], reference: NDArray[Any]) -> Compared:
    """Status and gap of two tensors in the same world, final outputs for example."""
    if actual.shape != reference.shape:
        return Compared(status="shape_differs")
    finite = np.isfinite(reference)
    odd_actual = int(actual.size - np.count_nonzero(np.isfinite(actual)))
    odd_reference = int(reference.size - np.count_nonzero(finite))
    if (odd_actual or odd_reference) and not _same_nonfinite(actual, reference, finite):
        return Compared(status="nonfinite_differs", nonfinite_actual=odd_actual, nonfinite_reference=odd_reference)
    if odd_reference:
        actual, reference = actual[finite], reference[finite]
    found = gap(actual, reference)
    return Compared(
        status="exact" if not found.max_abs and np.array_equal(actual, reference) else "compared",
        gap=found,
        nonfinite_actual=odd_actual,
        nonfinite_reference=odd_reference,
    )


def _same_nonfinite(actual: NDArray[Any], reference: NDArray[Any], finite: NDArray[np.bool_]) -> bool:
    """Whether both sides are infinite or NaN at the same elements, infinities with the same sign."""
    if not np.array_equal(np.isfinite(actual), finite):
        return False
    return np.array_equal(actual[~finite], reference[~finite], equal_nan=True)
