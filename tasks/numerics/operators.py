"""One operator's tensor from a device against the reference's: status first, then the gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import EvidenceError
from tasks.numerics.coverage import Status
from tasks.numerics.dequantize import dequantize, undo_layout
from tasks.numerics.metrics import gap, nonfinite
from tasks.records import Gap, Operator, Quantization


def compare_operator(
    operator: Operator,
    dumped_quantization: Quantization | None,
    axis_order: Sequence[int] | None,
    captured: NDArray[Any],
    reference: NDArray[Any],
) -> tuple[Status, Gap]:
    """Bring `captured` to the reference's world by the dumped tensor's metadata, then compare.

    Layout is undone first, since a per-channel axis is counted in PyTorch's. Integer codes become reals only where the
    reference is real: an integer reference holds codes or indices of its own. Nothing is ever reshaped. Infinities
    and NaNs that agree in place and kind are left out of the gap. Without a comparison the gap is empty.
    Raises EvidenceError if `reference` is not of the operator's shape, or the metadata does not fit the tensor.
    """
    if operator.shape != reference.shape:
        raise EvidenceError(
            f"the reference of {operator.name} has shape {reference.shape}, the operator table says {operator.shape}"
        )
    if axis_order is not None and len(axis_order) != captured.ndim:
        return "shape_differs", Gap()
    actual = undo_layout(captured, axis_order)
    if actual.shape != reference.shape:
        return "shape_differs", Gap()
    if actual.dtype.kind in "iu" and reference.dtype.kind == "f":
        if dumped_quantization is None:
            return "dtype_differs", Gap()
        actual = dequantize(actual, dumped_quantization)
    return compare_values(actual, reference)


def compare_values(actual: NDArray[Any], reference: NDArray[Any]) -> tuple[Status, Gap]:
    """Status and gap of two tensors in the same world, final outputs for example."""
    if actual.shape != reference.shape:
        return "shape_differs", Gap()
    if nonfinite(actual, reference) is not None:
        finite = np.isfinite(reference)
        if not _same_nonfinite(actual, reference, finite):
            return "nonfinite_differs", Gap()
        actual, reference = actual[finite], reference[finite]
    return "exact" if np.array_equal(actual, reference) else "compared", gap(actual, reference)


def _same_nonfinite(actual: NDArray[Any], reference: NDArray[Any], finite: NDArray[np.bool_]) -> bool:
    """Whether both sides are infinite or NaN at the same elements, infinities with the same sign."""
    if not np.array_equal(np.isfinite(actual), finite):
        return False
    return np.array_equal(actual[~finite], reference[~finite], equal_nan=True)
