"""The distribution of an error that is counted in steps of a device's grid."""

import math
from dataclasses import dataclass

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array

_COUNTED = 2**17  # errors over a wider range are sorted instead of counted


@dataclass(frozen=True, slots=True, eq=False)
class StepCounts:
    """The different errors of a tensor, and the number of elements that have each of them.

    An error is a whole number of steps. So a tensor of a million elements usually has less than ten different errors,
    and all measures are computed from these.
    """

    errors: Array
    """The signed errors in steps, ascending, in float64."""
    elements: Array

    @classmethod
    def of(cls, steps: Array, counted: Array | None = None) -> "StepCounts":
        """Count the elements per error. `steps`: the signed errors, of which at least one counts; those are finite.

        `counted`: a mask of the elements that count; None if all elements count.
        """
        flat = steps.reshape(-1)
        wrong = flat != 0
        if counted is not None:
            wrong &= counted.reshape(-1)
        # Few elements are wrong: only these are counted one by one.
        errors = flat.compress(wrong)
        right = (flat.size if counted is None else int(np.count_nonzero(counted))) - errors.size
        lowest, highest = float(errors.min(initial=0)), float(errors.max(initial=0))
        if highest - lowest >= _COUNTED:
            present, elements = np.unique(np.append(errors, 0.0), return_counts=True)
            elements[present == 0] += right - 1
        else:
            elements = np.bincount((errors - lowest).astype(np.intp), minlength=int(highest - lowest) + 1)
            elements[int(-lowest)] += right
            present = lowest + np.arange(elements.size)
        return cls(present[elements > 0].astype(np.float64), elements[elements > 0])

    @property
    def total(self) -> int:
        """Return the number of elements."""
        return int(self.elements.sum())

    @property
    def largest(self) -> float:
        """Return the largest absolute error."""
        return float(np.abs(self.errors).max())

    @property
    def mean(self) -> float:
        """Return the mean of the signed errors."""
        return float(self.errors @ self.elements) / self.total

    @property
    def rms(self) -> float:
        """Return the root mean square of the errors."""
        return math.sqrt(float(np.square(self.errors) @ self.elements) / self.total)

    def quantile(self, share: float) -> float:
        """Return the quantile of the absolute errors. Like `numpy.quantile`, it interpolates between two elements."""
        absolute = np.abs(self.errors)
        order = np.argsort(absolute)
        rank = share * (self.total - 1)
        below, above = np.searchsorted(self.elements[order].cumsum(), [math.floor(rank), math.ceil(rank)], "right")
        low, high = (float(absolute[order[position]]) for position in (below, above))
        return low + (high - low) * (rank - math.floor(rank))

    def beyond(self, limit: float) -> int:
        """Return the number of elements whose absolute error is above `limit`."""
        return int(self.elements[np.abs(self.errors) > limit].sum())
