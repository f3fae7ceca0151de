"""The numbers of bits of the weights that leave least error under a limit of all bits.

The choice is an integer program (the multiple-choice knapsack problem): every weight has one number of bits, the sum of
all bits is limited, and the sum of the errors is as small as possible. HiGHS solves it exactly. The errors are those of
the error budget; for another number of bits, they follow the square of the step of the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from qnnsweep.conf.repair import TargetConfig
from qnnsweep.tasks.records import LoweredProgram

_LEFT_BY_16_BITS = 0.1  # of the error of 8-bit weights: HTP's kernels compute with fewer bits than 16
_TOLERANCE = 2e-6  # twice the part of a limit by which HiGHS may exceed it
BYTES_PER_KIB = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Width:
    """A number of bits that the weight of an operator can have."""

    operator: str
    dtype: str
    """The quantization of the operator, such as 16a4w."""
    weight_bits: float
    """The bits of all elements."""
    error: float
    """The energy of the final output's error by the rounding of this weight."""
    removed: float
    """By how much the energy is smaller than now."""
    is_now: bool
    """Whether the weight has these bits already."""


def error_with(bits: int, now: int, error: float) -> float:
    """Return the error of a weight that is rounded to `bits` bits. `error`: with `now` bits, as the budget has it."""
    if bits == now:
        return error
    if now == 16:
        return error_with(bits, 8, error / _LEFT_BY_16_BITS)
    if bits == 16:
        return _LEFT_BY_16_BITS * error_with(8, now, error)
    return error * ((2**now - 1) / (2**bits - 1)) ** 2


def least_error(weights: Sequence[Sequence[Width]], most_bits: float) -> list[Width] | None:
    """Return one width per weight: those with the least sum of errors. `most_bits`: the largest sum of all bits.

    Returns None if even the smallest widths have more bits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # late: only a repair with a limit of the size needs it

    flat = [width for widths in weights for width in widths]
    if not flat:
        return None
    ends = list(accumulate(map(len, weights)))
    is_of_weight = np.zeros((len(weights), len(flat)))
    for row, (end, widths) in enumerate(zip(ends, weights, strict=True)):
        is_of_weight[row, end - len(widths) : end] = 1
    bits = np.array([width.weight_bits for width in flat])
    errors = np.array([width.error for width in flat])
    bound = sum(min(width.error for width in widths) for widths in weights)  # HiGHS' tolerances are relative to it
    for limit in (1.0, 1.0 - _TOLERANCE):
        solution = milp(
            errors / max(bound, np.finfo(float).tiny),
            integrality=np.ones(len(flat)),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(is_of_weight, 1, 1),
                LinearConstraint(bits / max(most_bits, 1.0), -np.inf, limit),
            ],
            options={"mip_rel_gap": 0},
        )
        chosen = [] if solution.x is None else np.flatnonzero(solution.x > 0.5)
        if len(chosen) and bits[chosen].sum() <= most_bits:
            return [flat[number] for number in chosen]
    return None


def most_weight_bits(target: TargetConfig, lowered: LoweredProgram) -> float | None:
    """Return how many bits all weights may have, so that the program is as small as the target says; None for any."""
    limits: list[float] = []
    if target.effective_bits is not None:
        limits.append(target.effective_bits * _elements(lowered))
    if target.size_kib is not None:
        limits.append(_bits(lowered) + 8 * (target.size_kib * BYTES_PER_KIB - lowered.program.size))
    return min(limits, default=None)


def effective_bits(lowered: LoweredProgram) -> float | None:
    """Return the mean number of bits of an element of the weights; None for a program without weights."""
    elements = _elements(lowered)
    return _bits(lowered) / elements if elements else None


def _bits(lowered: LoweredProgram) -> float:
    return sum(method.weight_bits for method in lowered.methods)


def _elements(lowered: LoweredProgram) -> int:
    return sum(weight.elements for method in lowered.methods for weight in method.weights)
