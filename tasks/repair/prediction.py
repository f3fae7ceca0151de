"""The prediction of a change's gain from its trial, and what a trial needs: the number that the target is about.

The trial gives the noise of every sample at the rung `designed`, with the change. The device has other noise than its
design. Where the two are close, the device's roundings only differ from those of the design, and do so with the change
as well: the noise keeps its ratio. Where the device has far more noise, this noise is added to that of the design. No
trial on the host shows whether a change removes it. A search that measures its steps may assume that it does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qnnsweep.conf.repair import TargetConfig
from qnnsweep.tasks.numerics.noise import MethodSample, decibels, noise_by_sample
from qnnsweep.tasks.records import Comparison
from qnnsweep.tasks.records.vocabulary import Rung

_OWN = 3.0  # times the noise of the design: above it, the device has errors of its own
_LEAST_NOISE = 1e-12  # 120 dB


@dataclass(frozen=True, slots=True)
class Statistic:
    """The number of a cell that a repair improves: the SNR of one of the samples in the order of their noise, in dB.

    `quantile`: which part of the samples may have a lower SNR; 0 is the lowest SNR, and None the SNR of the mean noise.
    """

    quantile: float | None = 0.0

    def __call__(self, noise: Sequence[float]) -> float:
        """Return the SNR of samples with this noise. It is -inf for infinite noise, and inf for none."""
        if not noise:
            return math.inf
        if self.quantile is None:
            level = float(np.mean(noise))
        else:
            level = sorted(noise, reverse=True)[min(int(self.quantile * len(noise)), len(noise) - 1)]
        return decibels(level)


LOWEST = Statistic()


def statistic_of(target: TargetConfig) -> Statistic:
    """Return the number that a change must raise: of a cell without a target, the lowest SNR.

    A target without an SNR is about all samples: their mean noise.
    """
    if target.final_snr_db is not None or target == TargetConfig(quantile=target.quantile):
        return LOWEST
    return Statistic(target.quantile if target.quantile_snr_db is not None else None)


def noise_at(rung: Rung, comparison: Comparison) -> dict[MethodSample, float]:
    """Return the noise of every sample at a rung: on the device, or at the rung `designed`. Not all may have one."""
    # Outputs of integers have no SNR that counts.
    rows = [row for row in comparison.outputs if row.rung == rung and row.equal_elements is None]
    return noise_by_sample(row for row in rows if row.status not in ("diverged", "no_value"))


def predicted_noise(
    device: Sequence[float], design: Sequence[float], changed: Sequence[float], removed: float = 0.0
) -> list[float]:
    """Return the noise of every sample on the device with a change; `design`, `changed`: without and with it.

    `removed`: which part of the device's own noise the change is assumed to remove.
    """
    return [_predicted(*of_sample, removed) for of_sample in zip(device, design, changed, strict=True)]


def _predicted(device: float, design: float, changed: float, removed: float) -> float:
    if math.inf in (device, design, changed):
        return changed
    added = changed + (1 - removed) * (device - design)
    if device > _OWN * design or not design:
        return added
    in_proportion = changed * device / design
    return min(in_proportion, added) if device > design else in_proportion


def gain_db(before: float, after: float) -> float:
    """Return by how many dB an SNR rises; see `Statistic` for infinite ones."""
    limit = -10 * math.log10(_LEAST_NOISE)
    before, after = (max(-limit, min(limit, snr_db)) for snr_db in (before, after))
    return after - before
