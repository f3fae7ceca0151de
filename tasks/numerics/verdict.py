"""What to make of one operator's numbers: did it make the error, hand it on, or could nobody see?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from conf.schema import OperatorTolerance
from tasks.numerics.replay import Introduced
from tasks.records import Gap, OperatorComparison
from tasks.records.vocabulary import COMPARED, OperatorStatus, Verdict


def limits(operators: Mapping[str, OperatorTolerance], scheme: str, target: str) -> OperatorTolerance:
    """The tolerance of one operator: `<scheme>/<target>`, else `*/<target>`, else `<scheme>`, else `*`, else none."""
    for key in (f"{scheme}/{target}", f"*/{target}", scheme, "*"):
        if key in operators:
            return operators[key]
    return OperatorTolerance()


def of_scheme(operators: Mapping[str, OperatorTolerance], scheme: str) -> dict[str, OperatorTolerance]:
    """The same tolerances for one scheme, whatever it is called: `*/<target>` and `*` alone."""
    found = {key: allowed for key, allowed in operators.items() if key.startswith("*")}
    for key, allowed in operators.items():
        if key == scheme or key.startswith(f"{scheme}/"):
            found[f"*{key.removeprefix(scheme)}"] = allowed
    return found


def introduces(found: Introduced, allowed: OperatorTolerance) -> bool:
    """Whether an operator's own error is beyond both its steps and its SNR."""
    return found.nonfinite > 0 or (
        _beyond(found.gap, allowed)
        and not (allowed.steps is not None and found.steps is not None and found.steps <= allowed.steps)
    )


def verdict(status: OperatorStatus, total: Gap, found: Introduced | None, allowed: OperatorTolerance) -> Verdict:
    if status == "exact":
        return "exact"
    if status == "nonfinite_differs" and found is not None:
        return "introduced" if introduces(found, allowed) else "inherited"
    if status not in ("compared", "masked") or found is None:
        return "blind"
    if introduces(found, allowed):
        return "introduced"
    if total.max_abs in (0.0, None):
        return "exact"
    return "inherited" if _beyond(total, allowed) else "within_grid"


def worst_operator(rows: Iterable[OperatorComparison]) -> OperatorComparison | None:
    """The one to look at first: of those that introduce error, the one that does most to the final outputs.

    Where none does, or nobody could see: the one with the lowest introduced SNR, or else the lowest total SNR.
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
    """An error where the reference is all zeros has no ratio; it is beyond any."""
    if allowed.snr_db is None or not gap.max_abs:
        return False
    return gap.snr_db is None or gap.snr_db < allowed.snr_db
