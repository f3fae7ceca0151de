"""The comparison of one tensor from a device with the reference's tensor: first the status, then the gap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.blocks import Tensor, whole
from qnnsweep.tasks.numerics.dequantize import undo_layout
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.metrics import gap, select, sums_of
from qnnsweep.tasks.records import Gap, Operator, Quantization
from qnnsweep.tasks.records.vocabulary import COMPARED, OperatorStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The status and the gap of one tensor, and the number of infinite or NaN elements on each side."""

    status: OperatorStatus
    gap: Gap = field(default_factory=Gap)
    nonfinite_actual: int = 0
    nonfinite_reference: int = 0


def compare_operator(
    operator: Operator,
    qparams: Quantization | None,
    axis_order: Sequence[int] | None,
    captured: NDArray[Any],
    reference: NDArray[Any],
    used_mask: NDArray[np.bool_] | None = None,
) -> Compared:
    """Convert `captured` to the reference's layout and scale, then compare.

    `qparams`, `axis_order`: those of the expected tensor. `used_mask`: the elements that some reader uses. With a mask,
    only these elements are compared and the status is `masked`; None compares all elements.

    The layout is undone first, because a per-channel axis refers to PyTorch's layout. Integers are dequantized only for
    a floating-point reference: an integer reference itself contains quantized values or indices. Nothing is ever
    reshaped. Infinities and NaNs that agree in position and kind are left out of the gap. A tensor that cannot be
    compared has an empty gap.

    Raises EvidenceError if `reference` is not of the operator's shape, or if the qparams do not fit the tensor.
    """
    if operator.shape != reference.shape:
        raise EvidenceError(
            f"the reference of {operator.name} has shape {reference.shape}, the operator table has {operator.shape}"
        )
    same_rank = axis_order is None or len(axis_order) == captured.ndim
    if not same_rank or undo_layout(captured, axis_order).shape != reference.shape:
        return Compared(status="shape_differs")
    if captured.dtype.kind in "iu" and reference.dtype.kind == "f" and qparams is None:
        return Compared(status="dtype_differs")
    compared = compare_values(_as_reference(qparams, axis_order, captured, reference), reference, used_mask)
    masked = used_mask is not None and compared.status in COMPARED
    return replace(compared, status="masked") if masked else compared


def to_reference_layout_and_scale(
    qparams: Quantization | None, axis_order: Sequence[int] | None, captured: NDArray[Any], reference: NDArray[Any]
) -> NDArray[Any]:
    """Return `captured` in PyTorch's layout, dequantized if it is quantized and `reference` is floating point.

    Raises EvidenceError if the qparams do not fit the tensor.
    """
    return _as_reference(qparams, axis_order, captured, reference).dequantized()


def _as_reference(
    qparams: Quantization | None, axis_order: Sequence[int] | None, captured: NDArray[Any], reference: NDArray[Any]
) -> CapturedValue:
    elements = np.asarray(undo_layout(captured, axis_order), order="C")  # of 0 dimensions, too
    quantized = elements.dtype.kind in "iu" and reference.dtype.kind == "f"
    return CapturedValue(elements=elements, qparams=qparams if quantized else None)


def compare_values(actual: Tensor, reference: NDArray[Any], used_mask: NDArray[np.bool_] | None = None) -> Compared:
    """Return the status and the gap of two tensors of the same layout and scale, for example final outputs.

    `used_mask`: the elements that are compared; None compares all.
    """
    if actual.shape != reference.shape:
        return Compared(status="shape_differs")
    sums = sums_of(actual, reference, counted=used_mask)
    if math.isfinite(sums.error_energy) and sums.error_largest:
        # An infinity or a NaN on either side would make the energy infinite or NaN.
        return Compared(status="compared", gap=sums.gap)
    actual, reference = select(whole(actual), used_mask), select(reference, used_mask)
    finite = np.isfinite(reference)
    odd_actual = int(actual.size - np.count_nonzero(np.isfinite(actual)))
    odd_reference = int(reference.size - np.count_nonzero(finite))
    if (odd_actual or odd_reference) and not _same_nonfinite(actual, reference, finite):
        return Compared(status="nonfinite_differs", nonfinite_actual=odd_actual, nonfinite_reference=odd_reference)
    if odd_reference:
        actual, reference = actual[finite], reference[finite]
    difference = gap(actual, reference)
    return Compared(
        status="exact" if not difference.max_abs and np.array_equal(actual, reference) else "compared",
        gap=difference,
        nonfinite_actual=odd_actual,
        nonfinite_reference=odd_reference,
    )


def _same_nonfinite(actual: NDArray[Any], reference: NDArray[Any], finite: NDArray[np.bool_]) -> bool:
    """Return whether both tensors are infinite or NaN at the same elements, with the same sign of infinities."""
    if not np.array_equal(np.isfinite(actual), finite):
        return False
    return np.array_equal(actual[~finite], reference[~finite], equal_nan=True)
