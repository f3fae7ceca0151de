"""The rung at which the final outputs lose most accuracy, on the ladder from eager PyTorch to the device."""

from collections.abc import Iterable
from itertools import pairwise

from tasks.records import OutputComparison
from tasks.records.vocabulary import RUNGS, Rung


def steepest(outputs: Iterable[OutputComparison]) -> Rung | None:
    """Return the rung at which most accuracy is lost: where the mean noise-to-signal ratio against eager grows most.

    `outputs`: final outputs of all rungs and samples. None if the ratio grows at no rung.
    """
    ratios: dict[Rung, list[float]] = {}
    for row in outputs:
        if row.status == "exact":
            ratios.setdefault(row.rung, []).append(0.0)
        elif row.gap.snr_db is not None:
            ratios.setdefault(row.rung, []).append(10 ** (-row.gap.snr_db / 10))
    rungs: list[Rung] = [rung for rung in RUNGS if rung in ratios]
    noise = [0.0, *(sum(ratios[rung]) / len(ratios[rung]) for rung in rungs)]
    growth = [after - before for before, after in pairwise(noise)]
    worst = max(range(len(rungs)), key=growth.__getitem__, default=None)
    return rungs[worst] if worst is not None and growth[worst] > 0 else None
