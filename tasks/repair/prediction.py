"""The prediction of a change's gain, from the error budget of a final output.

The budget has the energy of the error that each cause alone gives the output, at each operator. A change leaves a known
factor of some of these energies: a grid with 256 times as many steps leaves 1/256² of the energy of its rounding.

The energies add up to more than the energy of the output's error if errors cancel each other, and to less if they add
up. The prediction assumes that any two errors do so to the same degree: all pairs have the same correlation, with which
the energies add up exactly to that of the output's error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from qnnsweep.tasks.records import ErrorShare
from qnnsweep.tasks.records.vocabulary import Cause

ErrorPart = tuple[Cause, str | None]
"""A cause of error and the operator or the input where it arises; None for the part that is unexplained."""

_LEAST_ENERGY = 1e-10  # a prediction of more than 100 dB says no more than a prediction of 100 dB
_LEAST_LEFT = 0.25  # what cancels at most: three quarters of the energies that are left


def energies(shares: Sequence[ErrorShare]) -> dict[ErrorPart, float]:
    """Return the energies of the parts of an output's error, divided by that of the error. Empty without a budget.

    `shares`: of one output on one sample.
    """
    return {
        (share.cause, share.operator): share.share
        for share in shares
        if share.share is not None and share.share > 0 and (share.operator is not None or share.cause == "unexplained")
    }


def gain_db(parts: Mapping[ErrorPart, float], remaining: Mapping[ErrorPart, float]) -> float:
    """Return by how many dB the SNR rises. `remaining`: per changed part, the factor of its energy that is left."""
    total, pairs = sum(parts.values()), _pairs(parts.values())
    if total == 0:
        return 0.0
    # With a single part there are no pairs, so that the part is the whole error.
    correlation = (1 - total) / pairs if pairs else 0.0
    whole = total + correlation * pairs
    left = [energy * remaining.get(part, 1.0) for part, energy in parts.items()]
    energy = sum(left) + correlation * _pairs(left)
    return -10 * math.log10(max(energy, _LEAST_LEFT * sum(left) / max(total, 1.0), _LEAST_ENERGY) / whole)


def _pairs(energies: Iterable[float]) -> float:
    """Return the energy that is added if all errors are the same error: twice the sum of all pairs' products."""
    values = list(energies)
    return max(math.fsum(map(math.sqrt, values)) ** 2 - math.fsum(values), 0.0)
