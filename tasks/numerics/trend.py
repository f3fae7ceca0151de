"""Is tonight's value of a series a change for the worse? One series of one cell, night after night, as plain numbers.

The baseline is the last nights that passed their own gate and were not told to be worse. With its median m, its median
absolute deviation MAD over n nights and k = `sigmas`, a value regressed when it is worse than m by more than

    max(floor, k * s * sqrt(1 + pi / 2n)),    s = 1.4826 * n / (n - 0.8) * MAD

1.4826 makes the MAD a standard deviation where noise is normal (Hampel, JASA 69, 1974), n / (n - 0.8) takes the bias of
few nights from it (Croux and Rousseeuw, COMPSTAT 1992). The root is for m's own error: a median of n normal values has
the variance pi / 2n of theirs. Median and MAD withstand up to half of the nights being outliers.

A drift moves that baseline along with it. So the median of the last three nights is held, by the same formula, against
the oldest half of a baseline that there is.
"""

from __future__ import annotations

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
_SETTLED = 3
"""A better level is the baseline when it has lasted so many nights. A worse one must last `TrendConfig.nights`."""
_RECENT = 3
"""Nights whose median is held against the oldest ones."""
_FLAP = 2
"""A series that is bad again within so many nights is still bad: what comes and goes is told once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """What a number of a cell means."""

    unit: str
    better: Literal[1, -1]
    """1: more is better; -1: less is."""
    relative: bool = False
    """Its floor is a share of the baseline."""
    noisy: bool = False
    """Two nights differ though nothing has changed: a few nights must pass before there is a baseline."""


SERIES: Mapping[str, Series] = {
    "passed": Series(unit="share", better=1),
    "final_snr_db": Series(unit="dB", better=1),
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
"""Those of a cell. A night's value is that of the table `cells`, but for the two that are made of others."""
OPERATOR_SERIES: Mapping[str, Series] = {
    "snr_db": Series(unit="dB", better=1),
    "introduced_snr_db": Series(unit="dB", better=1),
}
"""Those of an operator: the worst of its samples, against the edge graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """One earlier night of a series, and what was told of it."""

    run: str
    value: float | None
    passed: bool
    """The cell passed its own gate: the night may be part of a baseline."""
    verdict: str | None = None
    """None where nothing was told."""
    first_bad_run: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """What is told of tonight. All is None, and `nights` 0, where there is nothing to say it with."""

    verdict: TrendVerdict
    first_bad_run: str | None = None
    last_good_run: str | None = None
    """Of a bad verdict: the last night before it that was not, or was not as bad."""
    nights: int = 0
    median: float | None = None
    mad: float | None = None
    floor: float | None = None
    """In the series' own unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What tonight is held against."""

    nights: int
    median: float
    mad: float
    floor: float
    limit: float
    """What a change must exceed."""


def assess(earlier: Sequence[Night], tonight: Night, series: Series, floor: float, config: TrendConfig) -> Assessment:
    """The verdict on tonight's value, from the earlier nights of the same series, oldest first.

    What was told of a night decides whether it belongs to a baseline, so what is told tomorrow does not depend on
    how far back one looks.
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

    def told(verdict: TrendVerdict, against: Baseline, first_bad: str | None = None) -> Assessment:
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
        against = max(recent, oldest, key=lambda each: series.better * each.median)
        bad = median(_values([night for night in defined if night.first_bad_run == event and night.verdict in BAD]))
        if fall(bad, value) > against.limit:
            return told("regressed", against, tonight.run)
        # Half the limit: a value that lies about it must not come and go with its noise.
        if fall(against.median, value) > against.limit / 2:
            return told("still_bad", against, event)
    elif fall(recent.median, value) > recent.limit or drifts:
        against = recent if fall(recent.median, value) > recent.limit else oldest
        return told("still_bad", against, event) if event else told("regressed", against, tonight.run)
    return told("improved" if fall(value, recent.median) > recent.limit else "steady", recent)


def baseline(levels: Sequence[Sequence[float]], series: Series, floor: float, config: TrendConfig) -> Baseline:
    """The baseline of the last level. Noise is measured on the levels before it too, each about its own median."""
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
    """What a change must exceed: the floor, in the series' unit, and the noise that the MAD of so many nights tells."""
    deviation = _NORMAL * mad * nights / (nights - 0.8)
    return max(floor, config.sigmas * deviation * sqrt(1 + pi / 2 / nights))


def _levels(nights: Sequence[Night], accepted_after: int) -> list[list[Night]]:
    """The nights that may be a baseline, one list for each level that was held, the present one last."""
    levels: list[list[Night]] = [[]]
    lasted = _lasted(nights)
    for kind, group in groupby(nights, key=_kind):
        members = list(group)
        passed = [night for night in members if night.passed]
        if kind == "held":
            levels[-1] += passed
        elif len(members) >= _SETTLED if kind == "improved" else lasted[kind] >= accepted_after:
            levels.append(passed)
    return [level for level in levels if level]


def _kind(night: Night) -> str:
    """What a night was: `held` the level, `improved`, or, when it was bad, the first run of that."""
    if night.verdict in BAD:
        return night.first_bad_run or ""
    return "improved" if night.verdict == "improved" else "held"


def _lasted(nights: Sequence[Night]) -> Counter[str]:
    """How many nights that passed their gate each first bad run has after it, itself included."""
    return Counter(_kind(night) for night in nights if night.verdict in BAD and night.passed)


def _event(nights: Sequence[Night], accepted_after: int) -> str | None:
    """The first bad run of what went wrong and may not be over."""
    for night in reversed(nights[-_FLAP:]):
        if night.verdict in BAD and _lasted(nights)[_kind(night)] < accepted_after:
            return _kind(night)
    return None


def _last_good(nights: Sequence[Night], first_bad: str) -> str | None:
    """The last night before the first bad one that is part of a baseline, or was as bad as the night before was."""
    before = nights[: next((place for place, night in enumerate(nights) if night.run == first_bad), len(nights))]
    if before and before[-1].verdict in BAD and before[-1].first_bad_run != first_bad:
        return before[-1].run
    return next((night.run for night in reversed(before) if night.passed and night.verdict not in BAD), None)


def _values(nights: Sequence[Night]) -> list[float]:
    return [night.value for night in nights if night.value is not None]
