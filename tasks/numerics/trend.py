"""The decision whether tonight's value of a series is a regression. A series is one number of a cell, night by night.

The baseline is the last nights that passed their own gate and have no bad verdict. With their median m, their median
absolute deviation MAD over n nights and k = `sigmas`, a value is a regression if it is worse than m by more than

    max(floor, k * s * sqrt(1 + pi / 2n)),    s = 1.4826 * n / (n - 0.8) * MAD

The factor 1.4826 turns the MAD of normal noise into a standard deviation (Hampel, JASA 69, 1974). The factor
n / (n - 0.8) corrects the bias of the MAD for few nights (Croux and Rousseeuw, COMPSTAT 1992). The root adds the error
of m itself: the variance of the median of n normal values is pi / 2n times the variance of one value. Median and MAD
withstand up to half of the nights being outliers.

A drift moves the baseline along with it. Therefore the median of the last three nights is also compared, by the same
formula, with the oldest half of the baseline.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import pi, sqrt
from statistics import median
from typing import Literal

from conf.schema import TrendConfig
from tasks.records.vocabulary import TrendVerdict

BAD = ("regressed", "still_bad")

_NORMAL = 1.4826
_SETTLED = 3  # nights after which a better level becomes the baseline; a worse level needs `TrendConfig.nights`
_RECENT = 3  # nights whose median is compared with that of the oldest nights
_FLAP = 2  # a series that is bad again within this number of nights has the same regression


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The unit and the properties of a number that is compared from night to night."""

    unit: str
    better: Literal[1, -1]  # 1: more is better; -1: less is better
    relative: bool = False  # the floor is a share of the baseline
    noisy: bool = False  # nights differ although nothing has changed: a baseline needs several nights


SERIES: Mapping[str, Series] = {
    "passed": Series(unit="share", better=1),
    "final_snr_db": Series(unit="dB", better=1),
    "device_snr_db": Series(unit="dB", better=1),
    "final_cosine": Series(unit="1", better=1),
    "top1_agreement": Series(unit="share", better=1),
    "accuracy": Series(unit="share", better=1),
    "observer_effect_snr_db": Series(unit="dB", better=1),
    "coverage": Series(unit="share", better=1),
    "operators_introduced": Series(unit="operators", better=-1),
    "delegated_nodes": Series(unit="nodes", better=1),
    "non_delegated_nodes": Series(unit="nodes", better=-1),
    "pte_bytes": Series(unit="bytes", better=-1, relative=True),
    "spill_bytes": Series(unit="bytes", better=-1, relative=True),
    "latency_p50_ms": Series(unit="ms", better=-1, relative=True, noisy=True),
}
"""The series of a cell. They are columns of the table `cells`, except `passed` and `coverage`, which are computed."""
OPERATOR_SERIES: Mapping[str, Series] = {
    "snr_db": Series(unit="dB", better=1),
    "introduced_snr_db": Series(unit="dB", better=1),
}
"""The series of an operator: the value on its worst sample, against the edge graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """One night of a series, and the verdict on it."""

    run: str
    value: float | None
    passed: bool  # the cell passed its own gate: the night may be part of a baseline
    verdict: str | None = None
    first_bad_run: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict on tonight. Without a baseline all numbers are None, and `nights` is 0."""

    verdict: TrendVerdict
    first_bad_run: str | None = None
    last_good_run: str | None = None  # for a bad verdict, the last earlier run that was good or less bad
    nights: int = 0
    median: float | None = None
    mad: float | None = None
    floor: float | None = None  # in the series' unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A summary of the nights with which tonight is compared."""

    nights: int
    median: float
    mad: float
    floor: float
    limit: float  # the largest change that is no regression


def assess(earlier: Sequence[Night], tonight: Night, series: Series, floor: float, config: TrendConfig) -> Assessment:
    """Return the verdict on tonight's value.

    `earlier`: the earlier nights of the same series, oldest first. Their verdicts decide which nights belong to a
    baseline, so that the result does not depend on how many nights are given. `floor`: the smallest limit, as a
    share of the baseline for a relative series, otherwise in the series' unit.
    """
    if tonight.value is None:
        return Assessment(verdict="undefined")
    if not earlier:
        return Assessment(verdict="new")
    defined = [night for night in earlier if night.value is not None][-2 * config.nights :]
    levels = _levels(defined, config.nights)
    least = config.least_nights if series.noisy else 1
    if sum(map(len, levels)) < least:
        return Assessment(verdict="no_baseline")
    level = _values(levels[-1])
    recent = baseline([*map(_values, levels)], series, floor, config)
    oldest = baseline([level[: max(1, config.nights // 2)]], series, floor, config)

    def fall(before: float, now: float) -> float:
        return series.better * (before - now)

    def assessment(verdict: TrendVerdict, against: Baseline, first_bad: str | None = None) -> Assessment:
        return Assessment(
            verdict=verdict,
            first_bad_run=first_bad,
            last_good_run=first_bad and _last_good(defined, first_bad),
            nights=against.nights,
            median=against.median,
            mad=against.mad,
            floor=against.floor,
        )

    value = tonight.value
    drifted = median([*level[1 - _RECENT :], value])
    drifts = len(level) > oldest.nights and fall(oldest.median, drifted) > oldest.limit
    event = _event(defined, config.nights)
    if event and defined[-1].verdict in BAD:
        against = max(recent, oldest, key=lambda candidate: series.better * candidate.median)
        bad = median(_values([night for night in defined if night.first_bad_run == event and night.verdict in BAD]))
        if fall(bad, value) > against.limit:
            return assessment("regressed", against, tonight.run)
        # Half the limit, so that the verdict on a value near the limit does not change with the value's noise.
        if fall(against.median, value) > against.limit / 2:
            return assessment("still_bad", against, event)
    elif fall(recent.median, value) > recent.limit or drifts:
        against = recent if fall(recent.median, value) > recent.limit else oldest
        return assessment("still_bad", against, event) if event else assessment("regressed", against, tonight.run)
    return assessment("improved" if fall(value, recent.median) > recent.limit else "steady", recent)


def baseline(levels: Sequence[Sequence[float]], series: Series, floor: float, config: TrendConfig) -> Baseline:
    """Return the baseline of the last level. Its `mad` covers the nights of all levels, around each level's median."""
    values = levels[-1][-config.nights :]
    middle = median(values)
    around = ((median(level), level) for level in (*levels[:-1], values))
    deviations = [abs(value - center) for center, level in around for value in level]
    counted = deviations[-config.nights :]
    mad = median(counted)
    least = floor * abs(middle) if series.relative else floor
    limit = beyond(least, mad, len(counted), config)
    return Baseline(nights=len(values), median=middle, mad=mad, floor=least, limit=limit)


def beyond(floor: float, mad: float, nights: int, config: TrendConfig) -> float:
    """Return the limit that a change must exceed: the floor, or the noise computed from `mad` if that is larger.

    `floor`: in the series' unit. `mad`: the median absolute deviation of `nights` nights.
    """
    deviation = _NORMAL * mad * nights / (nights - 0.8)
    return max(floor, config.sigmas * deviation * sqrt(1 + pi / 2 / nights))


def _levels(nights: Sequence[Night], accepted_after: int) -> list[list[Night]]:
    """Return the nights that can be a baseline: one list per level, the present level last."""
    levels: list[list[Night]] = [[]]
    lasted = _lasted(nights)
    for kind, group in groupby(nights, key=_kind):
        members = list(group)
        passed = [night for night in members if night.passed]
        if kind == "level":
            levels[-1] += passed
        elif len(members) >= _SETTLED if kind == "improved" else lasted[kind] >= accepted_after:
            levels.append(passed)
    return [level for level in levels if level]


def _kind(night: Night) -> str:
    """Return a bad night's first bad run, `improved` for a night with this verdict, and `level` for any other night."""
    if night.verdict in BAD:
        return night.first_bad_run or ""
    return "improved" if night.verdict == "improved" else "level"


def _lasted(nights: Sequence[Night]) -> Counter[str]:
    """Count, per first bad run of a regression, the bad nights of this regression on which the cell still passed."""
    return Counter(_kind(night) for night in nights if night.verdict in BAD and night.passed)


def _event(nights: Sequence[Night], accepted_after: int) -> str | None:
    """Return the first bad run of a regression that may still last; None if there is none."""
    for night in reversed(nights[-_FLAP:]):
        if night.verdict in BAD and _lasted(nights)[_kind(night)] < accepted_after:
            return _kind(night)
    return None


def _last_good(nights: Sequence[Night], first_bad: str) -> str | None:
    """Return the last run before `first_bad` that is part of a baseline or belongs to an earlier regression."""
    before = nights[: next((position for position, night in enumerate(nights) if night.run == first_bad), len(nights))]
    if before and before[-1].verdict in BAD and before[-1].first_bad_run != first_bad:
        return before[-1].run
    return next((night.run for night in reversed(before) if night.passed and night.verdict not in BAD), None)


def _values(nights: Sequence[Night]) -> list[float]:
    return [night.value for night in nights if night.value is not None]
