"""The verdict on one operator's error: the operator introduced it or inherited it, or the error's origin is unknown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.numerics.introduced import Introduced
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import SIGNIFICANT_SHARE, ErrorShare, Gap, OperatorComparison
from qnnsweep.tasks.records.vocabulary import COMPARED, OWN_ERROR, Cause, OperatorStatus, Verdict

_CHANNEL_DB = 15  # a single channel may have an SNR lower than the whole value by this number of decibels
_SIGNIFICANT = 3  # standard errors

EVERY_SCHEME = "*"
"""The scheme of the tolerances that `of_scheme` returns."""


def limits(operators: Mapping[str, OperatorTolerance], scheme: str, target: str) -> OperatorTolerance:
    """Return one operator's tolerance: `<scheme>/<target>`, else `*/<target>`, else `<scheme>`, else `*`, else none."""
    for key in (f"{scheme}/{target}", f"*/{target}", scheme, "*"):
        if key in operators:
            return operators[key]
    return OperatorTolerance()


def of_scheme(operators: Mapping[str, OperatorTolerance], scheme: str) -> dict[str, OperatorTolerance]:
    """Return the tolerances that apply to one scheme, with keys that do not name the scheme: `*/<target>` and `*`."""
    tolerances = {key: allowed for key, allowed in operators.items() if key.startswith("*")}
    for key, allowed in operators.items():
        if key == scheme or key.startswith(f"{scheme}/"):
            tolerances[f"*{key.removeprefix(scheme)}"] = allowed
    return tolerances


def introduces(introduced: Introduced, allowed: OperatorTolerance) -> bool:
    """Return whether an operator's own error is not finite, or beyond one of the limits for single errors."""
    if introduced.nonfinite > 0:
        return True
    if introduced.differing is not None and introduced.differing <= (allowed.differing or 0) * introduced.elements:
        return False
    if introduced.differing is not None and allowed.differing is not None:
        return True
    return _beyond_steps(introduced, allowed) or _beyond_noise(introduced, allowed)


def is_biased(introduced: Introduced, allowed: OperatorTolerance) -> bool:
    """Return whether the mean of the signed errors, or the gain, is beyond its limit by three standard errors."""
    mean, gain = introduced.mean_steps, introduced.gain
    if introduced.differing is not None:
        return False
    # The spread of a few elements says little about the error of their mean: assume one step at least.
    mean_error = max(introduced.mean_steps_error or 0.0, 1 / math.sqrt(max(introduced.elements, 1)))
    shifted = mean is not None and _surely_beyond(mean, mean_error, allowed.mean_steps)
    return shifted or (gain is not None and _surely_beyond(gain - 1, introduced.gain_error, allowed.gain))


def has_own_error(introduced: Introduced, allowed: OperatorTolerance) -> bool:
    """Return whether an operator's own error is beyond its tolerance: it introduces error, or it is biased."""
    return introduces(introduced, allowed) or is_biased(introduced, allowed)


def verdict(status: OperatorStatus, total: Gap, replayed: Replayed | None, allowed: OperatorTolerance) -> Verdict:
    """Return the verdict on an operator. `replayed`: its error by cause; None if the operator was not replayed."""
    if status == "exact":
        return "exact"
    if replayed is None or status not in (*COMPARED, "nonfinite_differs"):
        return "blind"
    if replayed.contradicted:
        return "contradicted"
    if replayed.felt and introduces(replayed.introduced, allowed):
        return "introduced"
    if replayed.felt and is_biased(replayed.introduced, allowed):
        return "biased"
    if status == "masked" and (
        total.max_abs == 0.0 or total == Gap()
    ):  # the used elements are equal, or there are none
        return "exact"
    if status == "nonfinite_differs":
        return "inherited"
    if replayed.introduced.differing is not None:  # the tolerance is for an operator's own error
        return "within_grid" if replayed.inherited.max_abs == 0.0 else "inherited"
    if not _beyond(total, allowed):
        return "within_grid"
    rounding = replayed.grid_use.gap if replayed.grid_use else Gap()
    more = (rounding.mse or 0.0) > (replayed.inherited.mse or 0.0)
    return "grid" if replayed.grid_use and (more or not _beyond(replayed.inherited, allowed)) else "inherited"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstOperator:
    """The operator to examine first, on the sample where its own error is largest."""

    row: OperatorComparison
    cause: Cause | None = None
    """The cause of the operator's effect on the final outputs; None if the effect is not known."""
    effect_snr_db: float | None = None
    """The SNR of the final output if this effect were the only error."""


def worst_operator(rows: Sequence[OperatorComparison], budget: Iterable[ErrorShare] = ()) -> WorstOperator | None:
    """Return the operator with the largest effect on a final output. None if no operator was compared.

    An operator whose infinities or NaNs differ comes first: one that introduces them, or else the earliest. Then comes
    the first operator of the budget, without whose error most of the output's error is gone. Its error is at least a
    tenth of the output's, alone or left out, if any is: two operators can have the same error, such as equal ranges
    that clip one after the other, and then nothing is gone without one of them. An operator that introduces wrong
    booleans or integers has no effect, because they have no derivative. It comes before an effect that
    is smaller than the unexplained share. So does an operator that introduces any error, if the share of the observer,
    the error that the debug program does not have, is larger. Without a budget, the worst operator is the one with the
    lowest introduced SNR of those that introduce error, else of all, or without a replay the operator with the lowest
    total SNR.
    """
    budget = list(budget)
    odd = [row for row in rows if row.status == "nonfinite_differs" and row.verdict != "contradicted"]
    if odd:
        return WorstOperator(row=next((row for row in odd if row.verdict == "introduced"), odd[0]))
    compared = [row for row in rows if row.status in COMPARED or row.verdict in OWN_ERROR]
    names = {row.operator.name for row in rows}
    effects = [share for share in budget if share.operator in names and share.share]
    if effects:
        largest = next((e for e in effects if matters(e.share, e.alone_snr_db, e.without_snr_db)), effects[0])
        unexplained, observed = (
            max((share.share or 0.0 for share in budget if share.cause == cause), default=0.0)
            for cause in ("unexplained", "observer")
        )
        wrong = next(iter(wrong_integers(rows)), None)
        if wrong is not None and unexplained > (largest.share or 0.0):
            return WorstOperator(row=wrong, cause="device")
        introduced = [row for row in compared if row.verdict == "introduced"]
        if introduced and observed > (largest.share or 0.0):
            return WorstOperator(row=min(introduced, key=_introduced_db), cause="device")
        of_operator = [row for row in rows if row.operator.name == largest.operator]
        return WorstOperator(
            row=min(of_operator, key=_introduced_db), cause=largest.cause, effect_snr_db=largest.alone_snr_db
        )
    candidates = [row for row in compared if row.verdict in OWN_ERROR]
    candidates = candidates or [row for row in compared if row.parts.introduced_snr_db is not None]
    worst = min(candidates, key=_introduced_db, default=None) or min(compared, key=_total_db, default=None)
    return None if worst is None else WorstOperator(row=worst)


def matters(share: float | None, alone_snr_db: float | None, without_snr_db: float | None) -> bool:
    """Return whether a part of a budget has a tenth of the output's error, alone or left out; see `ErrorShare`."""
    if not share or share >= SIGNIFICANT_SHARE or alone_snr_db is None or without_snr_db is None:
        return (share or 0.0) >= SIGNIFICANT_SHARE
    all_db = alone_snr_db + 10 * math.log10(share)
    return 1 - 10 ** ((all_db - without_snr_db) / 10) >= SIGNIFICANT_SHARE


def wrong_integers(rows: Iterable[OperatorComparison]) -> list[OperatorComparison]:
    """Return the rows of the operators that introduce wrong booleans or integers."""
    return [row for row in rows if row.verdict == "introduced" and row.parts.introduced_differing]


def _introduced_db(row: OperatorComparison) -> float:
    if row.parts.introduced_snr_db is not None:
        return row.parts.introduced_snr_db
    # An error where the right value is all zeros, or an infinite one, is worse than any ratio.
    return -math.inf if row.verdict in OWN_ERROR else math.inf


def _total_db(row: OperatorComparison) -> float:
    if row.gap.snr_db is not None:
        return row.gap.snr_db
    return -math.inf if row.gap.max_abs and row.status != "exact" else math.inf


def _surely_beyond(value: float, standard_error: float | None, limit: float | None) -> bool:
    return standard_error is not None and limit is not None and abs(value) - _SIGNIFICANT * standard_error > limit


def _beyond_steps(introduced: Introduced, allowed: OperatorTolerance) -> bool:
    if allowed.steps is None or introduced.steps is None:
        return False
    limit = allowed.steps
    if introduced.differing is None and allowed.snr_db is not None and introduced.gap.snr_db is not None:
        # In steps, the error that has the lowest accepted SNR.
        tolerated = (introduced.rms_steps or 0.0) * 10 ** ((introduced.gap.snr_db - allowed.snr_db) / 20)
        limit = max(limit, tolerated)
    return introduced.steps.beyond(limit) > allowed.elements * introduced.elements


def _beyond_noise(introduced: Introduced, allowed: OperatorTolerance) -> bool:
    if introduced.differing is not None or allowed.snr_db is None or not introduced.elements:
        return False
    rms, channel_snr_db = introduced.rms_steps, introduced.channel_snr_db
    if rms is not None and allowed.rms_steps is not None and rms <= allowed.rms_steps:
        return False
    return _beyond(introduced.gap, allowed) or (
        channel_snr_db is not None and channel_snr_db < allowed.snr_db - _CHANNEL_DB
    )


def _beyond(gap: Gap, allowed: OperatorTolerance) -> bool:
    """Return whether the SNR is below the limit. If the reference is all zeros, any error is beyond the limit."""
    if allowed.snr_db is None or gap.max_abs == 0.0:
        return False
    # An error that float64 cannot hold has no largest element.
    return gap.snr_db is None or gap.snr_db < allowed.snr_db
