"""The candidates of a cell with what their trials promise, and the reason if none of them helps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qnnsweep.tasks.numerics.noise import MethodSample
from qnnsweep.tasks.records import Comparison, Cures, LoweredProgram, Trial
from qnnsweep.tasks.repair.candidates import Candidate
from qnnsweep.tasks.repair.prediction import LOWEST, Statistic, gain_db, noise_at, predicted_noise
from qnnsweep.tasks.repair.wording import gain_in_words

OF_USE_DB = 1.0
"""The least predicted gain of a change that is said."""
_LEAST_GAIN_DB = 0.05
"""The least gain that is not rounded to zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cure:
    """A change of a scheme that was tried, with its predicted gain."""

    candidate: Candidate
    predicted_db: float
    """The gain of the number that the target is about."""
    lowest_db: float
    highest_db: float
    """The least and the largest predicted gain of any sample."""


def cures(
    tried: Cures,
    offered: Sequence[Candidate],
    comparison: Comparison,
    lowered: LoweredProgram,
    statistic: Statistic = LOWEST,
    *,
    is_measured: bool = False,
) -> list[Cure]:
    """Return the candidates that were tried and not refused, the one with most predicted gain per cost first.

    `is_measured`: whether the changes will be measured; see `Promise`.
    """
    trials = {trial.key: trial for trial in tried.trials}
    promise = Promise(comparison, lowered, tried.before, statistic, is_measured=is_measured)
    found = [
        cure
        for candidate in offered
        if (trial := trials.get(candidate.key)) is not None and (cure := promise.of(candidate, trial)) is not None
    ]
    return sorted(found, key=lambda cure: -cure.predicted_db / cure.candidate.cost)


class Promise:
    """What the trials of a cell's candidates promise for the number that the target is about.

    `before`: the noise of `Cures.before`. `is_measured`: whether the changes will be measured. Then a change for the
    device's own error is assumed to remove it at its operators, which no trial on the host shows. Without, it is known
    of a change alone that replaces the device's kernel.
    """

    def __init__(
        self,
        comparison: Comparison,
        lowered: LoweredProgram,
        before: Sequence[float] = (),
        statistic: Statistic = LOWEST,
        *,
        is_measured: bool = False,
    ) -> None:
        self._statistic, self._is_measured = statistic, is_measured
        self._samples = [
            (method.exported.method, sample) for method in lowered.methods for sample in range(method.choosable)
        ]
        self._device = self._of_search(noise_at("device", comparison))
        design = dict(zip(self._samples, before, strict=False)) if before else noise_at("designed", comparison)
        self.design = self._of_search(design)
        """The noise of every sample at the rung `designed` before a change."""

    def _of_search(self, noise: Mapping[MethodSample, float]) -> dict[MethodSample, float]:
        """Return the noise without that of the samples of a certificate, which has no effect."""
        return {sample: noise[sample] for sample in self._samples if sample in noise}

    def of(self, candidate: Candidate, trial: Trial) -> Cure | None:
        """Return a candidate with its predicted gain; None if it is refused, or if nothing can be predicted."""
        if trial.refused is not None or len(trial.noise) != len(self._samples):
            return None
        if not self._device or not self._device.keys() <= self.design.keys():
            return None
        removed = candidate.device_share if self._is_measured or candidate.replaces_kernel else 0.0
        changed = dict(zip(self._samples, trial.noise, strict=True))
        # A step after another token than eager PyTorch's has no noise on the device.
        device, design, after = (
            [noise[sample] for sample in self._device] for noise in (self._device, self.design, changed)
        )
        noise = predicted_noise(device, design, after, removed)
        gains = [gain_db(LOWEST([before]), LOWEST([after])) for before, after in zip(device, noise, strict=True)]
        gain = gain_db(self._statistic(device), self._statistic(noise))
        return Cure(candidate=candidate, predicted_db=gain, lowest_db=min(gains), highest_db=max(gains))


def refused_changes(tried: Cures, offered: Sequence[Candidate]) -> list[str]:
    """Return the candidates that cannot be applied, computed or compiled, in words."""
    refused = {trial.key for trial in tried.trials if trial.refused is not None}
    return [candidate.description for candidate in offered if candidate.key in refused]


def why_none(number: int, refused: Sequence[str], found: Sequence[Cure]) -> str:
    """Return why no candidate is said, in a sentence. `number`: of the candidates that were tried, at least one."""
    best = max(found, key=lambda cure: cure.predicted_db, default=None)
    gains = "" if best is None or best.predicted_db < _LEAST_GAIN_DB else f"gains {gain_in_words(best.predicted_db)} dB"
    if number == 1:
        ends = [f"{name} cannot be compiled" for name in refused]
        ends += [f"{best.candidate.description} {gains or 'does not help'}"] if best is not None else []
    else:
        ends = [f"{len(refused)} cannot be compiled ({refused[0]})"] if refused else []
        if best is not None:
            ends.append(f"the best {gains} ({best.candidate.description})" if gains else "none helps")
    if not ends:
        return f"No cure known: {number} change{'s were' if number > 1 else ' was'} tried."
    begin = f"of {number} changes tried, " if number > 1 else ""
    return f"No cure known: {begin}{', '.join(ends)}."
