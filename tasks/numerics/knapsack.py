"""The multiple-choice knapsack problem: one choice per item, a limited sum of sizes, and the least sum of errors."""

from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any

import numpy as np

Choice = tuple[float, float]
"""The size of a choice, and its error."""
_TOLERANCE = 2e-6  # twice the part of a limit by which HiGHS may exceed it


def least_sum(items: Sequence[Sequence[Choice]], most: float) -> list[int] | None:
    """Return the number of the choice of every item, so that the sum of the sizes is at most `most`.

    HiGHS solves the integer program; the sum of the errors is the least but for 1e-6. Returns None if even the smallest
    choices are too large.
    """
    optimize: Any = import_module("scipy.optimize")  # late: only a repair with a limit of the size needs it
    if not items:
        return None
    sizes, errors = np.array([choice for choices in items for choice in choices]).T
    ends = list(accumulate(map(len, items)))
    is_of_item = np.zeros((len(items), len(sizes)))
    for row, (end, choices) in enumerate(zip(ends, items, strict=True)):
        is_of_item[row, end - len(choices) : end] = 1
    for limit in (1.0, 1.0 - _TOLERANCE):
        solution = optimize.milp(
            errors,
            integrality=np.ones(len(sizes)),
            bounds=optimize.Bounds(0, 1),
            constraints=[
                optimize.LinearConstraint(is_of_item, 1, 1),
                optimize.LinearConstraint(sizes / max(most, 1.0), -np.inf, limit),
            ],
            options={"mip_rel_gap": 0},
        )
        if solution.x is None:
            return None
        chosen: list[int] = np.flatnonzero(solution.x > 0.5).tolist()
        if sum(sizes[chosen]) <= most:
            return [number - end + len(choices) for number, end, choices in zip(chosen, ends, items, strict=True)]
    return None
