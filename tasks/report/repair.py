"""The page of a repair: the chart of size and accuracy, all steps, the certificate and the scheme."""

import shlex
from collections.abc import Sequence
from typing import Any

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.templates import html
from qnnsweep.tasks.storage.environment import without_home

_WIDTH, _HEIGHT = 640, 360
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 28, 610, 310
_INSET = 24  # between the outermost points and the axes
_TICKS = 4


def render_repair(
    run: RunFacts, reason: str, steps: Sequence[Row], certificate: Sequence[Row], scheme_text: str
) -> str:
    """Return the page as one HTML document that loads no other file.

    `steps`, `certificate`: the run's rows of the tables `repair` and `certificate`. `scheme_text`: the scheme as YAML.
    """
    return html(
        "repair",
        model=steps[0]["model"],
        scheme=steps[0]["scheme"],
        reason=reason,
        command=shlex.join(without_home(run.command)),
        chart=chart(steps),
        steps=steps,
        certificate=certificate,
        scheme_text=scheme_text,
    )


def chart(steps: Sequence[Row]) -> dict[str, Any]:
    """Return the points of the steps that were measured, and the line of those that no other step beats.

    Of several SoCs, the largest program and the lowest SNR of a step count.
    """
    measured: dict[int, tuple[float, float, Row]] = {}
    for row in steps:
        if row["mean_snr_db"] is not None and row["size_bytes"] is not None:
            size, snr_db, _ = measured.get(row["step"], (0.0, row["mean_snr_db"], row))
            measured[row["step"]] = max(size, row["size_bytes"] / 1024), min(snr_db, row["mean_snr_db"]), row
    sizes = _Scale([size for size, _, _ in measured.values()], _LEFT + _INSET, _RIGHT - _INSET)
    decibels = _Scale([snr_db for _, snr_db, _ in measured.values()], _BOTTOM - _INSET, _TOP + _INSET)
    front = [(size, snr_db) for size, snr_db, _ in measured.values() if _is_unbeaten(size, snr_db, measured)]
    line = "L".join(f"{sizes(size)} {decibels(snr_db)}" for size, snr_db in sorted(set(front)))
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "top": _TOP,
        "right": _RIGHT,
        "bottom": _BOTTOM,
        "x_ticks": sizes.ticks(0),
        "y_ticks": decibels.ticks(1),
        "front": f"M{line}" if line else "",
        "points": [
            {
                "x": sizes(size),
                "y": decibels(snr_db),
                "step": step,
                "kind": "accepted" if row["accepted"] else "reverted",
                "title": f"{row['candidate'] or 'before'}: {snr_db:.1f} dB, {size:,.0f} KiB",
            }
            for step, (size, snr_db, row) in measured.items()
        ],
    }


def _is_unbeaten(size: float, snr_db: float, measured: dict[int, tuple[float, float, Row]]) -> bool:
    others = [(other_size, other_db) for other_size, other_db, _ in measured.values()]
    return not any(
        other_size <= size and other_db >= snr_db and (other_size, other_db) != (size, snr_db)
        for other_size, other_db in others
    )


class _Scale:
    """Maps values to positions in the chart."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._least, self._most = min(values, default=0.0), max(values, default=1.0)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        spread = self._most - self._least
        share = (value - self._least) / spread if spread else 0.5
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self, digits: int) -> list[dict[str, Any]]:
        steps = range(_TICKS + 1) if self._most > self._least else range(1)
        values = [self._least + (self._most - self._least) * step / _TICKS for step in steps]
        return [{"at": self(value), "text": f"{value:,.{digits}f}"} for value in values]
