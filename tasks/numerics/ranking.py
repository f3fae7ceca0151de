"""The ranking of errors by their effects on a final output, from derivatives.

The device's run is the float model's run with an error added at every value. To first order around the run halfway
between the two, the effect of an error e on a final output is J e, with the Jacobian J of the output. The projection of
an effect on a direction z of the output, <z, J e> = <J' z, e>, costs one backward pass for all operators. The
directions are that of the output's own error, and orthonormal random directions in its complement, which count
(n - 1) / (K - 1) times. An output of n <= K elements is projected on its n axes, which is exact.

The ranking selects the errors that an ablation leaves out (`qnnsweep.tasks.numerics.ablation`): it says where to look.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import Part
from qnnsweep.tasks.numerics.element_use import Array, NoDerivative, Sensitivity
from qnnsweep.tasks.records.vocabulary import Cause

PROJECTIONS = 8
"""The number of projections of a final output."""
_LEAST = 3  # the direction of the error, and two random directions, which have a spread
_MOST_ELEMENTS = 2**24  # of all directions of an output together

Errors = Mapping[int, Mapping[Cause, Array]]
"""By operator index, the errors that arise at the operator's value, by cause, each of the operator's shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The estimated effect of an error on a final output. Energies are sums of squares over the output's elements."""

    energy: float
    """The energy of the effect alone."""
    variance: float
    """The variance of the estimated energy, from the spread of the random projections."""
    removed: float
    """By how much the energy of the output's error falls without this error."""


def errors_at(errors: Errors) -> dict[int, Array]:
    """Return the sum of the errors at every value, in float32."""
    return {index: np.asarray(sum(parts.values()), np.float32) for index, parts in errors.items()}


def finite(errors: Errors) -> dict[int, dict[Cause, Array]]:
    """Return the errors without those that have infinities or NaNs, which have no derivative."""
    kept: dict[int, dict[Cause, Array]] = {
        index: {cause: error for cause, error in parts.items() if np.isfinite(error).all()}
        for index, parts in errors.items()
    }
    return {index: parts for index, parts in kept.items() if parts}


def estimates(run: Sensitivity, output: int, error: Array, errors: Errors) -> dict[Part, Estimate]:
    """Return the estimated effects of all errors on a final output.

    `run`: the run halfway. `error`: the error of the final output, in the output's shape. Raises NoDerivative if an
    operator has no derivative, or no finite one where there is an error.
    """
    directions, counts = _directions(error.reshape(-1))
    along = directions @ error.reshape(-1)
    projected: dict[Part, Array] = defaultdict(lambda: np.zeros(len(counts)))
    for number, direction in enumerate(directions):
        for index, slope in run.gradients(output, direction.reshape(error.shape)).items():
            for cause, part in errors[index].items():
                projected[cause, index][number] = _projected(slope.reshape(-1), part.reshape(-1))
    random = counts != 1.0
    result: dict[Part, Estimate] = {}
    for part, effects in projected.items():
        energies = counts * np.square(effects)
        energy = float(energies.sum())
        variance = float(np.var(energies[random], ddof=1) * np.count_nonzero(random)) if random.any() else 0.0
        result[part] = Estimate(energy=energy, variance=variance, removed=2 * float(along @ effects) - energy)
    return result


def _projected(slope: Array, error: Array) -> float:
    """Return the effect of an error. An element without an error has none, even where a square root has no slope."""
    with np.errstate(invalid="ignore"):
        effect = float(np.einsum("i,i->", slope, error))
    if math.isfinite(effect):
        return effect
    wrong = error != 0
    effect = float(np.einsum("i,i->", slope[wrong], error[wrong])) if np.isfinite(slope[wrong]).all() else math.nan
    if not math.isfinite(effect):
        raise NoDerivative("an operator has no finite derivative where its value has an error")
    return effect


def _directions(error: Array) -> tuple[Array, Array]:
    """Return orthonormal directions, one per row, and how many directions of the output each of them stands for."""
    size, length = error.size, float(np.linalg.norm(error))
    count = min(PROJECTIONS, max(_MOST_ELEMENTS // max(size, 1), _LEAST))
    if size <= count:
        return np.eye(size), np.ones(size)
    if length == 0:
        return np.zeros((0, size)), np.zeros(0)
    along = error / length
    random = np.random.default_rng(0).standard_normal((size, count - 1))
    random -= np.outer(along, along @ random)
    complement = np.linalg.qr(random)[0].T
    return np.vstack([along, complement]), np.array([1.0, *[(size - 1) / (count - 1)] * (count - 1)])
