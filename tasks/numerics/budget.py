"""The error budget of a final output: how much of its error's energy each cause has, at each operator.

The device's run is the float model's run with an error added at every value: the rounding of weights, the clipping and
the resolution of the value's grid, and what the device itself computes differently. The effect of an error e on a final
output is J e, with the mean Jacobian J of the output over the path from the float model's run to the device's
(`qnnsweep.tasks.numerics.path`). The sum of all effects is the output's error.

The effects of the causes' totals, and of the errors that matter most, are computed exactly, one forward pass per point
of the path. To find out which errors matter, the energies of all effects are estimated from projections z of the
output: the direction of the output's own error, and orthonormal random directions in its complement, which count
(n - 1) / (K - 1) times. An output of n <= K elements is projected on its n axes, which is exact. A projection of an
effect, <z, J e> = <J' z, e>, costs one backward pass per point for all operators.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array, NoDerivative
from qnnsweep.tasks.numerics.metrics import signed_error
from qnnsweep.tasks.numerics.path import ARISING, ENOUGH, Errors, Path, RunAt, energy, path_of
from qnnsweep.tasks.records.vocabulary import Cause

PROJECTIONS = 8
"""The number of projections of a final output, per sample."""
_EXACT = 8  # per sample and final output: the largest effects that are computed exactly
_EXACT_PASSES = 72  # for these effects, at most: with 27 points of the path, only the two largest are exact
_LEAST = 3  # the direction of the error, and two random directions, which have a spread
_MOST_ELEMENTS = 2**24  # of all directions of an output together


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """The effect of one cause on a final output, at one operator or in total."""

    cause: Cause
    operator: int | None
    share: float | None = None
    """The energy of the effect, divided by the energy of the output's error."""
    share_error: float | None = None
    """The standard error of the share, from the spread of the random projections."""
    alone_snr_db: float | None = None
    """The SNR of the output with this error alone; None without an effect."""


@dataclass(slots=True)
class OutputBudget:
    """The sums of one final output over samples. Call `add` with each sample, then `effects`.

    Samples can be added to several budgets, for example in several processes, and then be joined.
    """

    before: int = 0
    """The number of samples that earlier budgets have: the random directions differ from sample to sample."""
    projections: int = 0
    samples: int = 0
    why: str | None = None
    """The reason why effects are not known, on some sample; None if all are known."""
    _signal: float = 0.0
    _energy: float = 0.0
    _unexplained: float = 0.0
    _effects: dict[tuple[Cause, int | None], float] = field(default_factory=lambda: defaultdict(float))
    _variances: dict[tuple[Cause, int | None], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, run_at: RunAt | str, output: int, actual: Array, reference: Array, errors: Errors) -> None:
        """Add a sample: the device's and the float model's final output, and the errors between the two runs.

        `run_at`: the reason, if there are no derivatives: the output's whole error is unexplained. A sample whose error
        is not finite is left out.
        """
        error = signed_error(actual, reference, np.float64).reshape(-1)
        if not np.isfinite(error).all():
            self.why = self.why or "a sample is left out, because its output has other infinities or NaNs"
            return
        finite = np.where(np.isfinite(reference), reference, 0)
        self.samples += 1
        self._signal += float(np.square(finite, dtype=np.float64).sum())
        self._energy += energy(error)
        try:
            if isinstance(run_at, str):
                raise NoDerivative(run_at)
            path, totals = path_of(run_at, output, error, errors)
            estimates, unexplained = self._estimate(path, output, error, actual.shape, errors)
        except NoDerivative as reason:
            self.why = self.why or str(reason)
            self._unexplained += energy(error)
            return
        exact: dict[tuple[Cause, int | None], float] = {
            (cause, None): energy(effect) for cause, effect in totals.items()
        }
        if totals:
            unexplained = energy(error - sum(totals.values()))
        if unexplained > ENOUGH * energy(error) > 0:
            self.why = self.why or (
                "the effects of the operators' errors do not add up with derivatives at "
                f"{_points(len(path.fractions))} between the float model's run and the device's"
            )
        ranked = sorted(estimates, key=lambda key: -estimates[key][0])
        largest: list[tuple[Cause, int]] = [(cause, index) for cause, index in ranked if index is not None]
        largest = largest[: min(_EXACT, _EXACT_PASSES // len(path.fractions))] if totals else []
        for cause, index in largest:
            if (effect := path.effect({index: errors[index][cause]}, output)) is not None:
                exact[cause, index] = energy(effect)
        self._unexplained += unexplained
        for key, (estimate, variance) in estimates.items():
            self._effects[key] += exact.get(key, estimate)
            self._variances[key] += 0.0 if key in exact else variance

    def _estimate(
        self, path: Path, output: int, error: Array, shape: tuple[int, ...], errors: Errors
    ) -> tuple[dict[tuple[Cause, int | None], tuple[float, float]], float]:
        """Return the estimated energy of every effect with its variance, and the energy that no effect explains."""
        directions, counts = _directions(error, self.before + self.samples)
        projected: dict[tuple[Cause, int | None], Array] = defaultdict(lambda: np.zeros(len(counts)))
        points = len(path.fractions)
        for fraction in path.fractions if len(directions) else ():
            run = path.run_at(fraction)
            for number, direction in enumerate(directions):
                for index, slope in run.gradients(output, direction.reshape(shape)).items():
                    for cause, part in errors[index].items():
                        effect = _projected(slope.reshape(-1), part.reshape(-1))
                        projected[cause, index][number] += effect / points
                        projected[cause, None][number] += effect / points
        self.projections += len(counts)
        explained = sum((projected[cause, None] for cause in ARISING), np.zeros(len(counts)))
        random = counts != 1.0
        estimates: dict[tuple[Cause, int | None], tuple[float, float]] = {}
        for key, effects in projected.items():
            energies = counts * np.square(effects)
            variance = float(np.var(energies[random], ddof=1) * np.count_nonzero(random)) if random.any() else 0.0
            estimates[key] = float(energies.sum()), variance
        return estimates, float(counts @ np.square(directions @ error - explained))

    @classmethod
    def joined(cls, budgets: Iterable["OutputBudget"]) -> "OutputBudget":
        """Return the budget of the samples of all budgets, which are in the order of the samples."""
        whole = cls()
        for part in budgets:
            whole.samples += part.samples
            whole.projections += part.projections
            whole.why = whole.why or part.why
            whole._signal += part._signal
            whole._energy += part._energy
            whole._unexplained += part._unexplained
            for key, effect in part._effects.items():
                whole._effects[key] += effect
                whole._variances[key] += part._variances[key]
        return whole

    def effects(self) -> list[Effect]:
        """Return the totals of all causes, which add up to 1, then the operators, the largest share first.

        The list is empty for an output without an error.
        """
        if self._energy == 0:
            return []
        totals = [self._effect(cause, None) for cause in ARISING]
        unexplained = self._unexplained / self._energy
        cross = 1.0 - unexplained - sum(self._effects[cause, None] / self._energy for cause in ARISING)
        totals += [Effect(cause="cross", operator=None, share=cross)]
        totals += [Effect(cause="unexplained", operator=None, share=unexplained)]
        ranked = sorted(self._effects, key=self._effects.__getitem__, reverse=True)
        return totals + [self._effect(cause, index) for cause, index in ranked if index is not None]

    def _effect(self, cause: Cause, operator: int | None) -> Effect:
        effect = self._effects[cause, operator]
        return Effect(
            cause=cause,
            operator=operator,
            share=effect / self._energy,
            share_error=math.sqrt(self._variances[cause, operator]) / self._energy,
            alone_snr_db=10 * math.log10(self._signal / effect) if effect > 0 and self._signal > 0 else None,
        )


def is_finite_error(actual: Array, reference: Array) -> bool:
    """Return whether a sample counts in the budget of an output."""
    return bool(np.isfinite(signed_error(actual, reference, np.float64)).all())


def _projected(slope: Array, error: Array) -> float:
    """Return the effect of an error. An element without an error has none, even where a square root has no slope.

    Raises NoDerivative if an element with an error has no finite slope.
    """
    with np.errstate(invalid="ignore"):
        effect = float(np.einsum("i,i->", slope, error))
    if math.isfinite(effect):
        return effect
    wrong = error != 0
    effect = float(np.einsum("i,i->", slope[wrong], error[wrong])) if np.isfinite(slope[wrong]).all() else math.nan
    if not math.isfinite(effect):
        raise NoDerivative("an operator has no finite derivative where its value has an error")
    return effect


def _points(number: int) -> str:
    return "1 point" if number == 1 else f"{number} points"


def _directions(error: Array, seed: int) -> tuple[Array, Array]:
    """Return orthonormal directions, one per row, and how many directions of the output each of them stands for."""
    size, length = error.size, float(np.linalg.norm(error))
    count = min(PROJECTIONS, max(_MOST_ELEMENTS // max(size, 1), _LEAST))
    if size <= count:
        return np.eye(size), np.ones(size)
    if length == 0:
        return np.zeros((0, size)), np.zeros(0)
    along = error / length
    random = np.random.default_rng(seed).standard_normal((size, count - 1))
    random -= np.outer(along, along @ random)
    complement = np.linalg.qr(random)[0].T
    return np.vstack([along, complement]), np.array([1.0, *[(size - 1) / (count - 1)] * (count - 1)])
