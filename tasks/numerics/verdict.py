"""The verdict on one operator's error: the operator introduced it or inherited it, or the error's origin is unknown."""

import math
from collections.abc import Iterable, Mapping

from conf.schema import OperatorTolerance
from tasks.numerics.replay import Introduced
from tasks.records import Gap, OperatorComparison
from tasks.records.vocabulary import COMPARED, OperatorStatus, Verdict


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
    """Return whether an operator's own error is not finite, or beyond both the limit in steps and the SNR limit."""
    within_steps = allowed.steps is not None and introduced.steps is not None and introduced.steps <= allowed.steps
    return introduced.nonfinite > 0 or (_beyond(introduced.gap, allowed) and not within_steps)


def verdict(status: OperatorStatus, total: Gap, introduced: Introduced | None, allowed: OperatorTolerance) -> Verdict:
    """Return the verdict on an operator. `introduced`: its introduced error; None if the operator was not replayed."""
    if status == "exact":
        return "exact"
    if status == "nonfinite_differs" and introduced is not None:
        return "introduced" if introduces(introduced, allowed) else "inherited"
    if status not in ("compared", "masked") or introduced is None:
        return "blind"
    if introduces(introduced, allowed):
        return "introduced"
    if total.max_abs in (0.0, None):
        return "exact"
    return "inherited" if _beyond(total, allowed) else "within_grid"


def worst_operator(rows: Iterable[OperatorComparison]) -> OperatorComparison | None:
    """Return the operator to examine first: of those that introduce error, the one that changes the outputs most.

    If no operator introduces error, return the operator with the lowest introduced SNR or, without a replay, the
    operator with the lowest total SNR. None if no operator was compared.
    """
    compared = [row for row in rows if row.status in COMPARED or row.verdict == "introduced"]
    introducing = [row for row in compared if row.verdict == "introduced"]
    if introducing:
        return min(introducing, key=lambda row: (_db(row.effect_snr_db), _db(row.introduced.snr_db, -math.inf)))
    replayed = [row for row in compared if row.introduced.snr_db is not None]
    if replayed:
        return min(replayed, key=lambda row: _db(row.introduced.snr_db))
    return min(compared, key=lambda row: _db(row.gap.snr_db), default=None)


def _db(ratio: float | None, absent: float = math.inf) -> float:
    return absent if ratio is None else ratio


def _beyond(gap: Gap, allowed: OperatorTolerance) -> bool:
    """Return whether the SNR is below the limit. If the reference is all zeros, any error is beyond the limit."""
    if allowed.snr_db is None or not gap.max_abs:
        return False
    return gap.snr_db is None or gap.snr_db < allowed.snr_db
