"""The verdict on tonight's value of a series. A series is one number of a cell, night by night.

The baseline is the nights of the present level: nights that passed their own gate and are not part of a regression. The
verdicts on the earlier nights decide which nights these are. tasks/numerics/change.py decides whether tonight differs
from the baseline. A series that is equal bit by bit on nights with equal inputs has no noise: each change beyond the
floor is a change, from the second night on, and each return of a regression is a regression.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress, groupby, pairwise, takewhile
from operator import itemgetter
from statistics import median

from qnnsweep.conf.schema import TrendConfig
from qnnsweep.tasks.numerics.change import SIGMAS, Baseline, baseline, changed_nights, exact_baseline, inliers, oldest
from qnnsweep.tasks.numerics.series import Series
from qnnsweep.tasks.records.vocabulary import TrendVerdict

BAD = ("regressed", "still_bad")

_GOOD = ("level", "improved")
_UNJUDGED = ("new", "no_baseline")
_SETTLED = 3  # nights after which a better level becomes the baseline; a worse level needs `TrendConfig.nights`
_FLAP = 3  # a series that is bad again within this number of nights has the same regression
_FLAP_OF_EXACT = 1  # without noise, each return is a regression


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """One night of a series, and the verdict on it."""

    run: str
    value: float | None
    passed: bool  # the cell passed its own gate: the night may be part of a baseline
    verdict: str | None = None
    first_bad_run: str | None = None
    inputs: Hashable = None
    """Nights with equal inputs have equal values, bit by bit; None if this is not so, as for a latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict on tonight. Without a baseline all numbers are None, and `nights` is 0."""

    verdict: TrendVerdict
    first_bad_run: str | None = None  # for a bad verdict, the run in which the series became worse
    last_good_run: str | None = None  # for a bad verdict, the last earlier run that was good or less bad
    nights: int = 0
    level: float | None = None
    noise: float | None = None
    floor: float | None = None  # in the series' unit


def history_nights(config: TrendConfig) -> int:
    """Return the number of earlier nights on which a verdict depends: the largest number of nights in a baseline."""
    return 3 * config.nights


def assess(
    earlier: Sequence[Night],
    tonight: Night,
    series: Series,
    floor: float,
    config: TrendConfig,
    worse: bool | None = None,
) -> Assessment:
    """Return the verdict on tonight's value.

    `earlier`: the earlier nights of the same series, oldest first. Their verdicts decide which nights belong to a
    baseline, so that the result does not depend on how many nights are given. `floor`: the smallest limit, as a
    share of the baseline for a relative series, otherwise in the series' unit. `worse`: whether a series that was good
    is worse tonight; by default, the limits of tasks/numerics/change.py decide this.
    """
    value = tonight.value
    if value is None:
        return Assessment(verdict="undefined")
    if not earlier:
        return Assessment(verdict="new")
    past = _Past.of(earlier, tonight, series, config)
    if not past.levels:
        return Assessment(verdict="no_baseline")
    values, recent = [*map(_values, past.levels)], past.recent()
    exact, of = past.exact, exact_baseline if past.exact else baseline

    def fall(before: float, now: float) -> float:
        return series.better * (before - now)

    def assessment(verdict: TrendVerdict, against: Baseline, first_bad: str | None = None) -> Assessment:
        return Assessment(
            verdict=verdict,
            first_bad_run=first_bad,
            last_good_run=first_bad and past.last_good(first_bad),
            nights=against.nights,
            level=against.level,
            noise=against.noise,
            floor=against.floor,
        )

    def still(against: Baseline, change: float) -> bool:
        """Return whether a change lasts. Half the floor is enough, so that noise near the limit changes no verdict."""
        return change > max(against.floor / 2, against.unit * config.sigmas / SIGMAS)

    whole, before = of(values, series, floor), oldest(values, series, floor, of)
    limit = whole.floor if exact else whole.limit(config.sigmas)
    event = past.event(config.nights, _FLAP_OF_EXACT if exact else _FLAP)
    if event:
        bad = median(_values([night for night, kind in past.nights if kind == event]))
        if fall(bad, value) > limit:
            return assessment("regressed", whole, tonight.run)
        for against in filter(None, (whole, before)):
            if still(against, fall(against.level, value)):
                return assessment("still_bad", against, event)
    elif exact:
        for against in filter(None, (whole, before)):
            if worse or (worse is None and fall(against.level, value) > against.floor):
                return assessment("regressed", against, tonight.run)
    elif worse is None and fall(whole.level, value) > 0:
        count, against = changed_nights(
            values, recent, value, series, floor, config.sigmas, direction=1, spikes=past.spikes()
        )
        if count:
            first = tonight if count == 1 else past.levels[-1][1 - count]
            return assessment("regressed", against, first.run)
    elif worse:
        return assessment("regressed", whole, tonight.run)
    if past.nights[-1][0].verdict == "improved":
        better = still(whole, fall(value, whole.level))
    elif exact:
        better = fall(value, whole.level) > limit
    else:
        gained = fall(value, whole.level) > 0
        better = gained and changed_nights(values, recent, value, series, floor, config.sigmas, direction=-1)[0] > 0
    return assessment("improved" if better else "steady", whole)


def probability(earlier: Sequence[Night], tonight: Night, series: Series, floor: float, config: TrendConfig) -> float:
    """Return an upper bound for the probability that noise alone makes tonight this bad. Without a baseline, it is 1.

    The parameters are those of `assess`.
    """
    past = _Past.of(earlier, tonight, series, config)
    if tonight.value is None or not past.levels:
        return 1.0
    against = (exact_baseline if past.exact else baseline)([*map(_values, past.levels)], series, floor)
    return against.probability(series.better * (against.level - tonight.value))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Past:
    """The earlier nights of a series that have a value.

    The kind of a night is the first bad run of its regression, `improved`, or `level` for any other night.
    """

    nights: Sequence[tuple[Night, str]]  # each night with its kind
    lasted: Counter[str]  # per kind, the number of nights on which the cell passed
    levels: Sequence[Sequence[Night]]  # the nights that can be a baseline, the present level last; empty if too few
    exact: bool  # the series has no noise

    @classmethod
    def of(cls, earlier: Sequence[Night], tonight: Night, series: Series, config: TrendConfig) -> "_Past":
        defined = [night for night in earlier if night.value is not None][-history_nights(config) :]
        nights = [*zip(defined, _kinds(defined), strict=True)]
        lasted = Counter(kind for night, kind in nights if night.passed)
        levels: list[list[Night]] = [[]]
        for kind, group in groupby(nights, key=itemgetter(1)):
            members = [night for night, _ in group]
            passed = [night for night in members if night.passed]
            if kind == "level":
                levels[-1] += passed
            elif len(members) >= _SETTLED if kind == "improved" else lasted[kind] >= config.nights:
                levels.append(passed)
        exact = tonight.inputs is not None and all(map(_is_exact, levels))
        enough = sum(map(len, levels)) >= (1 if exact else config.least_nights)
        levels = [level for level in levels if level and enough]
        judged = [[night.verdict not in _UNJUDGED for night in level] for level in levels]
        kept = inliers([*map(_values, levels)], judged, series)
        levels = [[*compress(level, of_level)] for level, of_level in zip(levels, kept, strict=True)]
        return cls(nights=nights, lasted=lasted, levels=[level for level in levels if level], exact=exact)

    def event(self, accepted_after: int, flap: int) -> str | None:
        """Return the first bad run of a regression that may still last; None if there is none.

        `flap`: the number of last nights of which one must be bad.
        """
        for night, kind in reversed(self.nights[-flap:]):
            if night.verdict in BAD and self.lasted[kind] < accepted_after:
                return kind
        return None

    def recent(self) -> int:
        """Return the number of nights of the present level since the last change for the better or the worse."""
        since = takewhile(lambda pair: pair[1] == "level", reversed(self.nights))
        return sum(night.passed for night, _ in since)

    def spikes(self) -> list[float]:
        """Return the values of bad nights on which the cell passed and which lasted for a single night."""
        kinds = ["", *(kind for _, kind in self.nights), ""]
        alone = [night for at, (night, kind) in enumerate(self.nights, 1) if kind not in (kinds[at - 1], kinds[at + 1])]
        return _values([night for night in alone if night.verdict in BAD and night.passed])

    def last_good(self, first_bad: str) -> str | None:
        """Return the last run before `first_bad` that is part of a baseline or belongs to an earlier regression."""
        before = [*takewhile(lambda pair: pair[0].run != first_bad, self.nights)]
        if before and before[-1][1] not in _GOOD:
            return before[-1][0].run
        return next((night.run for night, kind in reversed(before) if night.passed and kind in _GOOD), None)


def _kinds(nights: Sequence[Night]) -> list[str]:
    """Return the kind of each night. Nights between the beginning of a regression and its report are part of it."""
    kinds = ["improved" if night.verdict == "improved" else "level" for night in nights]
    runs = [night.run for night in nights]
    for position, night in enumerate(nights):
        if night.verdict in BAD and night.first_bad_run:
            began = night.verdict == "regressed" and night.first_bad_run in runs
            start = runs.index(night.first_bad_run) if began else position
            kinds[start : position + 1] = [night.first_bad_run] * (position + 1 - start)
    return kinds


def _is_exact(level: Sequence[Night]) -> bool:
    """Return whether the nights of a level have no noise: their value changes with their inputs alone.

    One other change is none of noise, but of something that the inputs do not contain.
    """
    pairs = [(before, after) for before, after in pairwise(level) if before.inputs == after.inputs]
    changes = sum(before.value != after.value for before, after in pairs)
    return changes <= 1 and all(night.inputs is not None for night in level)


def _values(nights: Sequence[Night]) -> list[float]:
    return [night.value for night in nights if night.value is not None]
