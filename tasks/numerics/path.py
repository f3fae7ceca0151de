"""The path from the float model's run to the device's run, along which the derivatives of a final output are averaged.

On the path, a fraction of every error is added where it arises. The mean of the Jacobian over the path, times the sum
of all errors, is exactly the output's error (Sundararajan et al., Axiomatic Attribution for Deep Networks, 2017). With
one point, halfway, the mean is exact except for terms of third order in the errors. That is not enough where the errors
are as large as the values: then the mean is over 3, 9 or 27 points.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array, Sensitivity
from qnnsweep.tasks.records.vocabulary import Cause

ARISING: tuple[Cause, ...] = ("weights", "clipping", "resolution", "device")
"""The causes of error that arise at operators."""
ENOUGH = 0.1
"""The share of an output's error that may remain unexplained: with more, the mean is over more points."""
_MOST_POINTS = 27
_HELPED = 0.9  # if a larger part of the unexplained energy remains with three times the points, more points are no help

Errors = Mapping[int, Mapping[Cause, Array]]
"""By operator index, the errors that arise at the operator's value, by cause, each of the operator's shape."""
RunAt = Callable[[float], Sensitivity]
"""Returns the run with a fraction of every error: 0 is the float model's run, and 1 is the device's."""


@dataclass(frozen=True, slots=True)
class Path:
    """Points of the path. The derivatives of a final output are the mean of those at the points."""

    run_at: RunAt
    fractions: Sequence[float] = (0.5,)

    def effect(self, errors: Mapping[int, Array], output: int) -> Array | None:
        """Return the sum of d(output) / d(value) * error over all errors, flattened.

        Return None if an operator has no derivative in this direction.
        """
        total = None
        for fraction in self.fractions:
            effects = self.run_at(fraction).effect(errors)
            if effects is None:
                return None
            total = effects[output].reshape(-1) + (0.0 if total is None else total)
        return None if total is None else total / len(self.fractions)


def path_of(run_at: RunAt, output: int, error: Array, errors: Errors) -> tuple[Path, dict[Cause, Array]]:
    """Return as many points as explain an output's error, and the total effect of every cause, flattened.

    `error`: the output's error, flattened. Without derivatives in the direction of an error, the path has one point,
    and there are no effects.
    """
    by_cause: dict[Cause, dict[int, Array]] = {
        cause: {index: parts[cause] for index, parts in errors.items() if cause in parts} for cause in ARISING
    }
    by_cause = {cause: parts for cause, parts in by_cause.items() if parts}
    fractions: list[float] = []
    sums: dict[Cause, Array] = {cause: np.zeros(error.size) for cause in by_cause}
    unexplained = np.inf
    while True:
        points = max(3 * len(fractions), 1)
        new = [(point + 0.5) / points for point in range(points) if points == 1 or point % 3 != 1]
        for fraction in new:
            for cause, parts in by_cause.items():
                if (effects := run_at(fraction).effect(parts)) is None:
                    return Path(run_at), {}
                sums[cause] += effects[output].reshape(-1)
        fractions += new
        totals: dict[Cause, Array] = {cause: total / points for cause, total in sums.items()}
        before, unexplained = unexplained, energy(error - sum(totals.values()))
        enough = unexplained <= ENOUGH * energy(error) or points >= _MOST_POINTS
        if enough or unexplained > _HELPED * before or not error.any():
            return Path(run_at, tuple(fractions)), totals


def errors_at(errors: Errors) -> dict[int, Array]:
    """Return the sum of the errors at every value, in float32."""
    return {index: np.asarray(sum(parts.values()), np.float32) for index, parts in errors.items()}


def energy(values: Array) -> float:
    """Return the sum of the squares."""
    return float(np.einsum("i,i->", values.reshape(-1), values.reshape(-1), dtype=np.float64))
