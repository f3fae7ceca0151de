"""Tolerances per operator type from an operator atlas: the errors that the device makes where it works."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from qnnsweep.conf.tolerances import OperatorTolerance, ToleranceConfig
from qnnsweep.tasks.numerics.verdict import limits
from qnnsweep.tasks.records.tables import Row

_WORKS = ("exact", "delegated")
MARGIN_DB = 6.0
"""By how much the SNR may be lower than the lowest that was measured."""
MARGIN_STEPS = 1.0


def measured_tolerance(rows: Iterable[Row], base: ToleranceConfig, name: str) -> ToleranceConfig:
    """Return `base` with an entry `<scheme>/<operator type>` for every operator type that an atlas measured.

    `rows`: of the table `atlas`. Only the worst operator of each usable case counts. The limit in steps is the largest
    99.9th percentile of the introduced error, rounded up, plus `MARGIN_STEPS`; of a value without a grid, the limit is
    the lowest introduced SNR, minus `MARGIN_DB`. The other limits are those that `base` has for the operator type.
    """
    steps: dict[tuple[str, str], list[float]] = defaultdict(list)
    snrs_db: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["state"] in _WORKS and row["worst_operator"] is not None:
            key = row["scheme"], row["worst_operator"]
            if row["introduced_p999_steps"] is not None:
                steps[key].append(row["introduced_p999_steps"])
            elif row["introduced_snr_db"] is not None:
                snrs_db[key].append(row["introduced_snr_db"])
    entries: dict[str, OperatorTolerance] = {}
    for scheme, target in sorted({*steps, *snrs_db}):
        before = limits(base.operators, scheme, target)
        key = scheme, target
        entries[f"{scheme}/{target}"] = replace(
            before,
            steps=math.ceil(max(steps[key])) + MARGIN_STEPS if key in steps else before.steps,
            snr_db=math.floor(min(snrs_db[key]) - MARGIN_DB) if key in snrs_db else before.snr_db,
        )
    return replace(base, name=name, operators={**entries, **base.operators})
