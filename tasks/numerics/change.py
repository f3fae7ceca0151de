"""The decision whether a series has changed: the last nights are compared with the nights before them, the baseline.

The baseline has the level m, the mean of the middle half of its values (the variance of this mean is 1.2 / n times the
variance of one value: Crow and Siddiqui, JASA 62, 1967), and the noise s, the standard deviation of its n values. A
change is counted in units of

    u = s * sqrt(1 + 1.2 / n) * t / 7 * h

where t / 7 is the factor by which Student's distribution with n - 1 degrees of freedom is wider than the normal
distribution at 7 standard deviations (at most 6, and at most 2 in the limit of a single night), and h is a factor for
noise with heavy tails. h is computed from Geary's ratio of the standard deviation to the mean absolute deviation
(Biometrika 27, 1935): the ratio is largest for heavy tails and for noise that is 0 on most nights.

A series has changed if the change exceeds the floor and one of these limits:

- tonight: `TrendConfig.sigmas` (16) units, and twice every earlier spike that was reported;
- tonight and the night before: 1 unit each, and 4.3 units in total, where at most 2.6 units per night are counted;
- the last twelve nights: the CUSUM (Page, Biometrika 41, 1954) of the change, of which at most 2.3 units per night are
  counted, less 0.65 units per night, exceeds 5.45 units. If the level has fewer than 40 nights, each night is compared
  with all nights before it: the CUSUM of the normal scores of Student's t, of which at most 4 per night are counted,
  less 0.75 per night, exceeds 7.3, unless the nights before and since are related to each other;
- the last three nights: their median differs by 4 units from the older half of the baseline, because a drift also
  moves the rest of the baseline, and is worse than all nights before.

The limits were chosen with benchmarks/verdicts.py, so that they hold for normal noise and for noise with heavy tails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import copysign, exp, inf, log, pi, sqrt
from statistics import NormalDist, fmean, median

from qnnsweep.tasks.numerics.series import Series

SIGMAS = 16.0
"""The value of `TrendConfig.sigmas` for which the other limits are stated. They change in proportion to it."""
WINDOW = 12
"""The number of last nights, with tonight, over which the CUSUM is computed."""

_TAIL = 7.0  # standard deviations at which Student's distribution is compared with the normal distribution
_WIDTH_MOST, _WIDTH_MOST_OF_A_NIGHT = 6.0, 2.0
_GEARY, _GEARY_MOST, _GEARY_POWER = 1.02, 1.3, 6  # the factor h is the ratio / 1.02, at most 1.3, to the power of 6
_SPIKE = 2.0  # a spike is reported if it exceeds earlier spikes by this factor
_PAIR, _PAIR_MOST, _PAIR_LEAST = 4.3, 2.6, 1.0
_CUSUM, _CUSUM_MOST, _CUSUM_SLACK = 5.45, 2.3, 0.65
_CUSUM_NIGHTS = 10  # the CUSUM needs this number of nights before its window
_YOUNG_NIGHTS = 40  # a level with fewer nights is judged by the CUSUM of scores
_YOUNG, _YOUNG_MOST, _YOUNG_SLACK, _YOUNG_LEAST = 7.3, 4.0, 0.75, 3
_RELATED = 0.25  # the autocorrelation of nights above which the CUSUM of scores would take their noise for a change
_OUTLIERS = 2  # so many nights may be outliers
_OUTLIER = 4.0  # in units of the limit of a single night, computed without the outliers
_OUTLIERS_REST, _NOT_YET_OUTLIERS = 10, 9  # among so many other nights; none of the last nights, which may be a change
_DRIFT, _DRIFT_NIGHTS, _OLDEST_NIGHTS = 4.0, 3, 5
_FREEDOM_MOST = 10  # degrees of freedom of the distribution from which the probability of a change is computed


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A summary of the nights with which tonight is compared."""

    nights: int
    level: float
    noise: float  # the standard deviation of the nights
    floor: float  # the smallest change that counts, in the series' unit
    unit: float  # the noise, enlarged for few nights and for heavy tails
    unit_of_a_night: float  # the unit of the limit of a single night
    freedom: int  # the degrees of freedom of the noise

    def limit(self, sigmas: float) -> float:
        """Return the change that a single night must exceed. Without noise and floor, no single night is enough."""
        return max(self.floor, sigmas * self.unit_of_a_night) or inf

    def probability(self, fall: float) -> float:
        """Return an upper bound for the probability that noise alone makes tonight's change at least `fall`."""
        if fall <= self.floor:
            return 1.0
        return NormalDist().cdf(-normal_score(fall / self.unit, min(self.freedom, _FREEDOM_MOST))) if self.unit else 0.0


def baseline(levels: Sequence[Sequence[float]], series: Series, floor: float) -> Baseline:
    """Return the baseline of the last level. Its noise is that of the nights of all levels, each around its own level.

    `floor`: a share of the level for a relative series, otherwise in the series' unit.
    """
    values = levels[-1]
    level = _middle(values)
    spread = _Spread.of(_deviations(levels), len(levels), len(values))
    return Baseline(
        nights=len(values),
        level=level,
        noise=spread.noise,
        floor=floor * abs(level) if series.relative else floor,
        unit=max(spread.unit, series.noise),
        unit_of_a_night=max(spread.unit_of_a_night, series.noise),
        freedom=spread.freedom,
    )


def exact_baseline(levels: Sequence[Sequence[float]], series: Series, floor: float) -> Baseline:
    """Return the baseline of a series without noise: any change beyond the floor is a change."""
    return replace(baseline(levels, series, floor), noise=0.0, unit=0.0, unit_of_a_night=0.0)


def inliers(levels: Sequence[Sequence[float]], judged: Sequence[Sequence[bool]], series: Series) -> list[list[bool]]:
    """Return which nights can be part of a baseline: all but one or two that differ from the others by far.

    Such nights are in a level if they came before the series had a baseline, so that they were not `judged`. Each
    deviates from its level by more than 4 units, which are computed from the other nights. So they cannot enlarge the
    noise. A night that was judged and found steady is part of the noise, however heavy its tails are.
    """
    deviations = _deviations(levels)
    count = len(deviations)
    old = range(max(0, count - _NOT_YET_OUTLIERS))
    was_judged = [is_judged for of_level in judged for is_judged in of_level]
    worst = sorted((night for night in old if not was_judged[night]), key=lambda night: -deviations[night])
    for outliers in range(_OUTLIERS, 0, -1):
        if count - outliers < _OUTLIERS_REST or outliers > len(worst):
            continue
        # The last two nights may be a change, which must not hide an outlier: the two largest of the last do not count.
        rest = [deviations[night] for night in old if night not in worst[:outliers]]
        rest += sorted(deviations[len(old) :])[:-2]
        unit = max(_Spread.of(rest, len(levels), len(rest)).unit_of_a_night, series.noise)
        if deviations[worst[outliers - 1]] > _OUTLIER * unit:
            kept = iter(night not in worst[:outliers] for night in range(count))
            return [[next(kept) for _ in level] for level in levels]
    return [[True] * len(level) for level in levels]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spread:
    """The noise of nights, from their deviations from their levels, and its units; see `Baseline`."""

    noise: float
    unit: float
    unit_of_a_night: float
    freedom: int

    @classmethod
    def of(cls, deviations: Sequence[float], levels: int, nights: int) -> "_Spread":
        """`levels`: their number. `nights`: the number of nights of the last level."""
        freedom = max(1, len(deviations) - levels)
        squares = sum(deviation * deviation for deviation in deviations)
        noise = sqrt(squares / freedom)
        if not noise:
            return cls(noise=0.0, unit=0.0, unit_of_a_night=0.0, freedom=freedom)
        ratio = sqrt(len(deviations) * squares / (pi / 2)) / sum(deviations)
        heavy = min(max(1.0, ratio / _GEARY), _GEARY_MOST) ** _GEARY_POWER
        enlarged = noise * sqrt(1 + 1.2 / nights) * heavy
        width = student_quantile(_TAIL, freedom) / _TAIL
        return cls(
            noise=noise,
            unit=enlarged * min(width, _WIDTH_MOST),
            unit_of_a_night=enlarged * min(width, _WIDTH_MOST_OF_A_NIGHT),
            freedom=freedom,
        )


def _deviations(levels: Sequence[Sequence[float]]) -> list[float]:
    """Return how far each night is from the middle of its level."""
    return [abs(value - center) for group in levels for center in [_middle(group)] for value in group]


def changed_nights(
    levels: Sequence[Sequence[float]],
    recent: int,
    tonight: float,
    series: Series,
    floor: float,
    sigmas: float,
    direction: int,
    spikes: Sequence[float] = (),
) -> tuple[int, Baseline]:
    """Return for how many nights, tonight included, the series has been different; 0 if it is not different.

    `levels`: the nights of the series' levels, oldest first. `recent`: the number of last nights, without tonight, that
    may belong to the change. `direction`: 1 for a change for the worse, -1 for a change for the better. `spikes`: the
    values of single nights that were reported before and that did not last. The second value is the baseline that was
    used.
    """
    *others, level = levels
    better = series.better * direction

    def compare(apart: int) -> tuple[Baseline, list[float], list[float]]:
        """Return the baseline without the last nights, and the changes of these nights in the series' unit and in u."""
        before = baseline([*others, level[: len(level) - apart]], series, floor)
        falls = [better * (before.level - value) for value in (*level[len(level) - apart :], tonight)]
        unit = before.unit * sigmas / SIGMAS
        return before, falls, [fall / unit if unit else copysign(inf, fall) if fall else 0.0 for fall in falls]

    near, falls, scores = compare(min(1, recent) if len(level) > 3 else 0)
    pair = len(falls) == 2 and min(scores) > _PAIR_LEAST and sum(min(score, _PAIR_MOST) for score in scores) > _PAIR
    # A spike like an earlier one is not reported again: as a night of the baseline, it is part of the noise.
    spike = _SPIKE * max((better * (near.level - value) for value in spikes), default=0.0)
    # Without noise and floor there is no measure for the size of a change, only for its duration.
    if falls[-1] > max(near.limit(sigmas), spike) or (pair and fmean(falls) > near.floor and near.limit(sigmas) < inf):
        return _onset(falls), near
    apart = min(WINDOW - 1, recent, len(level) - _CUSUM_NIGHTS)
    far, falls, scores = compare(apart) if apart > 1 else (near, [], [])
    if len(level) < _YOUNG_NIGHTS and (apart <= 1 or far.unit > series.noise):
        nights = _nights_of_young(level, min(recent, WINDOW - 1), tonight, series, better * SIGMAS / sigmas)
        far, falls, _ = compare(max(0, nights - 1))
        began = len(level) - len(falls) + 1
        related = _autocorrelation(level[:began], [*level[began:], tonight]) > _RELATED
        if nights > 1 and not related and median(falls[-3:]) > far.floor:
            return _onset(falls), far
    elif apart > 1:
        clipped = [max(-_CUSUM_MOST, min(score, _CUSUM_MOST)) for score in scores]
        cusum = 0.0
        for score in clipped:
            cusum = max(0.0, cusum + score - _CUSUM_SLACK)
        if cusum > _CUSUM and median(falls[-3:]) > far.floor:
            return _onset(clipped), far
    first = oldest(levels, series, floor)
    if first and recent >= _DRIFT_NIGHTS - 1:
        falls = [better * (first.level - value) for value in (*level[1 - _DRIFT_NIGHTS :], tonight)]
        # The values of a drift are worse than all values before. Those of noise are not.
        before = max(better * (first.level - value) for value in level[: 1 - _DRIFT_NIGHTS])
        if median(falls) > max(before, max(first.floor, _DRIFT * first.unit * sigmas / SIGMAS) or inf):
            return _onset(falls), first
    return 0, near


def _nights_of_young(level: Sequence[float], recent: int, tonight: float, series: Series, factor: float) -> int:
    """Return for how many nights, tonight included, the CUSUM of scores has been above 0; 0 if it is not at its limit.

    The score of a night is the normal score of Student's t of its difference from all nights before it (Hawkins,
    Journal of Quality Technology 19, 1987). So few nights have no smaller limit, and need no enlarged unit.
    `recent`: the number of last nights, without tonight, that may belong to the change. `factor`: of the scores.
    """
    cusum, nights = 0.0, 0
    values = [*level, tonight]
    mean, squares = values[0], 0.0
    for number, value in enumerate(values[1:], 1):
        if number >= _YOUNG_LEAST and number >= len(level) - recent:
            noise = max(sqrt(squares / (number - 1)), series.noise)
            quantile = (mean - value) / (noise * sqrt(1 + 1 / number)) if noise else 0.0
            score = factor * copysign(normal_score(quantile, number - 1), quantile)
            cusum = max(0.0, cusum + max(-_YOUNG_MOST, min(score, _YOUNG_MOST)) - _YOUNG_SLACK)
            nights = nights + 1 if cusum else 0
        before = mean
        mean += (value - mean) / (number + 1)
        squares += (value - before) * (value - mean)
    return nights if cusum > _YOUNG else 0


def _autocorrelation(*levels: Sequence[float]) -> float:
    """Return how closely each night is related to the night before it: 0 for independent noise, at most 1.

    Each night deviates from the mean of its own level, so that a change of the level relates no nights.
    """
    deviations = [[value - mean for value in level] for level in levels for mean in [fmean(level)]]
    squares = sum(deviation * deviation for level in deviations for deviation in level)
    products = sum(before * after for level in deviations for before, after in pairwise(level))
    return products / squares if squares else 0.0


def oldest(
    levels: Sequence[Sequence[float]],
    series: Series,
    floor: float,
    of: Callable[[Sequence[Sequence[float]], Series, float], Baseline] = baseline,
) -> Baseline | None:
    """Return the baseline of the older half of the present level; None if these nights are too few.

    A drift moves the baseline of all nights, but it does not move the baseline of the oldest nights. `of`: `baseline`,
    or `exact_baseline`.
    """
    *others, level = levels
    half = len(level) // 2
    return of([*others, level[:half]], series, floor) if half >= _OLDEST_NIGHTS else None


def discovered(probabilities: Sequence[float], rate: float) -> float:
    """Return the largest probability that is a discovery; 0 if only a probability of 0 is one.

    The expected share of false ones among the discoveries is at most `rate` (Benjamini and Hochberg, JRSS B 57, 1995),
    also if the tests are positively dependent (Benjamini and Yekutieli, Annals of Statistics 29, 2001).
    """
    ranked = enumerate(sorted(probabilities), 1)
    return max((value for rank, value in ranked if value <= rank * rate / len(probabilities)), default=0.0)


def _onset(changes: Sequence[float]) -> int:
    """Return the number of last nights that differ most clearly from the nights before them.

    This is the estimate with the greatest likelihood for a step of unknown size (Hinkley, Biometrika 57, 1970).
    """
    sums = enumerate(accumulate(reversed(changes)), 1)
    return max(sums, key=lambda item: max(0.0, item[1]) ** 2 / item[0])[0]


def _middle(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the values. The mean of equal values is exactly this value."""
    outer = (len(values) + 1) // 4
    middle = sorted(values)[outer : len(values) - outer]
    return middle[0] + fmean(value - middle[0] for value in middle)


def student_quantile(score: float, freedom: int) -> float:
    """Return the quantile of Student's distribution that has the probability of a normal score.

    This is the approximation of Wallace (Annals of Mathematical Statistics 30, 1959), as in `normal_score`.
    """
    return sqrt(freedom * (exp((score * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom) - 1))


def normal_score(quantile: float, freedom: int) -> float:
    """Return the normal score that has the probability of a quantile of Student's distribution."""
    return (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log(1 + quantile * quantile / freedom))
