"""The rung to which most of the noise in the device's final outputs belongs, on the path from eager PyTorch."""

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean

from qnnsweep.tasks.numerics.noise import noise_by_sample
from qnnsweep.tasks.records import OutputComparison
from qnnsweep.tasks.records.vocabulary import SHIPPING_RUNGS, Rung


def worst_rung(outputs: Iterable[OutputComparison]) -> Rung | None:
    """Return the rung of `SHIPPING_RUNGS` that adds most noise to the final outputs. None if no rung adds noise.

    The noise of a rung is the mean over the samples of the noise-to-signal ratio against eager fp32. The noise that a
    rung adds is the growth of the noise, without the part of the growth that a later rung takes away again: the growth
    of the smallest noise from this rung on. So the noises that the rungs add are never negative, and their sum is the
    noise of the device. If the noise of a rung is infinite, the first such rung is returned.

    `outputs`: final outputs of all rungs and samples. A rung that the host cannot compute is left out, and the noise
    that it would add is counted at the next rung.
    """
    rows = [row for row in outputs if row.status != "no_value"]
    noise: dict[Rung, float] = {}
    for rung in SHIPPING_RUNGS:
        if samples := noise_by_sample(row for row in rows if row.rung == rung):
            noise[rung] = fmean(samples.values())
            if math.isinf(noise[rung]):
                return rung
    rungs, levels = list(noise), list(noise.values())
    smallest = [min(levels[position:]) for position in range(len(levels))]
    added = [after - before for before, after in pairwise([0.0, *smallest])]
    worst = max(range(len(rungs)), key=added.__getitem__, default=None)
    return rungs[worst] if worst is not None and added[worst] > 0 else None
