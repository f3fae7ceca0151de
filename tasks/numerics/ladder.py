"""Where accuracy is lost: final outputs rung by rung, from eager PyTorch to the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.records import OutputComparison
from tasks.records.vocabulary import RUNGS


def steepest(outputs: Iterable[OutputComparison]) -> str | None:
    """The rung at which most is lost: where the mean noise-to-signal ratio against eager grows most.

    None when it grows nowhere.
    """
    ratios: dict[str, list[float]] = {}
    for row in outputs:
        if row.status == "exact":
            ratios.setdefault(row.rung, []).append(0.0)
        elif row.gap.snr_db is not None:
            ratios.setdefault(row.rung, []).append(10 ** (-row.gap.snr_db / 10))
    seen = [rung for rung in RUNGS if rung in ratios]
    noise = [0.0, *(_mean(ratios[rung]) for rung in seen)]
    growth = {rung: after - before for rung, before, after in zip(seen, noise, noise[1:], strict=False)}
    worst = max(growth, key=lambda rung: growth[rung], default=None)
    return worst if worst is not None and growth[worst] > 0 else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
