"""The ladder of a cell's final outputs: per rung, the SNRs and the top-1 agreement over all samples."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qnnsweep.tasks.numerics.noise import lowest_snr, noise_to_signal
from qnnsweep.tasks.records.vocabulary import RUNGS
from qnnsweep.tasks.report.format import snr

Row = Mapping[str, Any]

_ORDER = list(RUNGS)  # the path to the device, then the rung beside it


def ladders(outputs: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return, by the name of the final output, one row per rung in the order of the path to the device."""
    steps: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in outputs:
        steps[row["output"], row["rung"]].append(row)
    by_output: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (output, rung), rows in steps.items():
        by_output[output].append(_step(rung, rows))
    return {output: sorted(ladder, key=lambda step: _ORDER.index(step["rung"])) for output, ladder in by_output.items()}


def worst_output(outputs: Sequence[Row]) -> int | None:
    """Return the position of the device's final output with the most noise. None if the device has no output."""
    device = [row for row in outputs if row["rung"] == "device" and row["status"] not in ("no_value", "diverged")]
    worst = max(device, key=lambda row: noise_to_signal(row["status"], row["snr_db"]), default=None)
    return None if worst is None else worst["output_index"]


def _step(rung: str, rows: Sequence[Row]) -> dict[str, Any]:
    with_value = [row for row in rows if row["status"] not in ("no_value", "diverged")]
    worst = max(with_value, key=lambda row: noise_to_signal(row["status"], row["snr_db"]), default=None)
    snrs = [row["snr_db"] for row in with_value if row["snr_db"] is not None]
    from_previous = [
        (row["previous_status"], row["previous_snr_db"])
        for row in rows
        if row["previous_status"] not in (None, "no_value", "diverged")
    ]
    ranked = [row for row in rows if row["top1_reference"] is not None and row["top1_actual"] is not None]
    return {
        "rung": rung,
        "statuses": ", ".join(sorted({row["status"] for row in rows})),
        "why": next((row["why"] for row in rows if row["why"]), None),
        "worst_sample": worst and worst["sample_name"],
        "lowest_snr_db": snr(*lowest_snr([(row["status"], row["snr_db"]) for row in with_value])),
        "median_snr_db": float(np.median(snrs)) if snrs else None,
        "previous_rung": rows[0]["previous_rung"],
        "previous_snr_db": snr(*lowest_snr(from_previous)),
        "max_abs": max((row["max_abs"] for row in rows if row["max_abs"] is not None), default=None),
        "top1_same": sum(row["top1_reference"] == row["top1_actual"] for row in ranked) if ranked else None,
        "top1_of": len(ranked),
    }
