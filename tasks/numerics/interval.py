"""Intervals that show how much a figure depends on which evaluation samples were chosen.

They are 95 % confidence intervals if the samples are drawn independently from the inputs that the figure is about. They
contain neither a bias in the choice of the samples nor a difference between devices. An interval of fewer than two
samples is not defined.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]

_COVERED = 0.95
_RESAMPLES = 2000
_BLOCK = 2**20  # the largest number of chosen values that are in memory at the same time
_QUANTILE = NormalDist().inv_cdf((1 + _COVERED) / 2)


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % percentile interval of the mean, by the bootstrap; None for fewer than two values.

    The mean of n values that are drawn from `values` with replacement is computed 2000 times. The interval is that from
    the 2.5th to the 97.5th percentile of these means (Efron, Annals of Statistics 7, 1979; Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13). The seed is fixed, and the result does not depend on the order of
    the values. With few values the interval is too narrow: it never exceeds the smallest and the largest value.
    """
    count = len(values)
    if count < 2:
        return None
    ordered = np.sort(np.asarray(values, np.float64))
    random = np.random.default_rng(0)
    averages = np.empty(_RESAMPLES)
    rows = max(1, _BLOCK // count)
    for start in range(0, _RESAMPLES, rows):
        chosen = random.integers(0, count, (min(rows, _RESAMPLES - start), count))
        averages[start : start + rows] = ordered[chosen].mean(axis=1)
    low, high = np.percentile(averages, [50 * (1 - _COVERED), 50 * (1 + _COVERED)])
    return float(low), float(high)


def resampled_interval(count: int, statistic: Callable[[NDArray[np.int64]], float]) -> Interval | None:
    """Return the 95 % percentile interval of any statistic, by the bootstrap; None for fewer than two parts.

    `count`: the number of parts that are drawn with replacement, 1000 times. `statistic`: returns the statistic of the
    parts with these numbers. It is None too if the statistic of some parts is not finite. The source and the limits are
    those of `bootstrap_interval`.
    """
    if count < 2:
        return None
    random = np.random.default_rng(0)
    values = [statistic(random.integers(0, count, count)) for _ in range(_RESAMPLES // 2)]
    if not np.isfinite(values).all():
        return None
    low, high = np.percentile(values, [50 * (1 - _COVERED), 50 * (1 + _COVERED)])
    return float(low), float(high)


def wilson_interval(hits: int, count: int) -> Interval | None:
    """Return the 95 % score interval of a share, `hits` of `count`; None for fewer than two.

    This is the interval of Wilson (Journal of the American Statistical Association 22, 1927). It contains every share
    for which `hits` would not be surprising. A bootstrap interval of five hits of five would be 100 % to 100 %, as if
    five samples could exclude every error; the score interval is 57 % to 100 %.
    """
    if count < 2:
        return None
    share, square = hits / count, _QUANTILE**2
    middle = share + square / (2 * count)
    half = _QUANTILE * sqrt(share * (1 - share) / count + square / (4 * count**2))
    scale = 1 + square / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def share(hits: Sequence[bool]) -> tuple[float | None, float | None, float | None]:
    """Return the share of the hits, and the bounds of its interval; see `wilson_interval`. None without any."""
    if not hits:
        return None, None, None
    low, high = wilson_interval(sum(hits), len(hits)) or (None, None)
    return sum(hits) / len(hits), low, high
