"""The error budget of final outputs by ablation: the program is run with causes left out, and with one cause alone.

The run of the model of the device's arithmetic (`qnnsweep.tasks.numerics.arithmetic`) with all errors gives what the
device computed. For every cause, and for the operators that derivatives rank first
(`qnnsweep.tasks.numerics.ranking`), the run is repeated with this cause left out and with this cause alone. The causes
are then left out one after the other, the most useful first. What each step removes is the share of its cause, so that
the shares of an output add up to its error. No share is negative: where a step makes the error larger, only what a
later step removes beyond that counts, for this later step.

The operators are those of the debug program. What the shipping program's output has beyond the debug program's is one
more cause, the observer, which a run leaves out or adds to its output as it is.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import ARISING, Part, SampleRuns
from qnnsweep.tasks.numerics.element_use import Array
from qnnsweep.tasks.numerics.metrics import signed_error
from qnnsweep.tasks.numerics.ranking import Estimate
from qnnsweep.tasks.records import SIGNIFICANT_SHARE
from qnnsweep.tasks.records.vocabulary import CAUSES, Cause

_LEAST = 0.01  # the share of an output's error below which no single operator is left out
MOST = 1e6  # the largest share of an error alone, of errors that cancel each other
_MOST_PARTS = 6  # per final output, by what their absence removes; and as many by their own energy


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """One sample's final outputs, by number: of eager PyTorch, of the shipping and of the debug program."""

    eager: Mapping[int, Array]
    shipping: Mapping[int, Array]
    debug: Mapping[int, Array]
    """Without the outputs that are not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """The effect of one cause on a final output, at one operator or in total."""

    cause: Cause
    operator: int | None
    share: float | None = None
    share_error: float | None = None
    """The standard error of an estimated share; 0 for a share that was measured."""
    alone_snr_db: float | None = None
    without_snr_db: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputBudget:
    """The effects on one final output: the totals in the order of the path from the float model to the device, and then
    the operators, the one whose absence removes most first. Without effects if the output has no error."""

    effects: tuple[Effect, ...] = ()
    why: str | None = None
    """The reason why effects are not known; None if all are known."""


class Ablation:
    """The runs of one sample. Each is made once, and gives all final outputs."""

    def __init__(self, runs: SampleRuns, outputs: Outputs) -> None:
        self.outputs = outputs
        self._runs = runs
        self._made: dict[object, Sequence[Array] | None] = {}

    def without(self, causes: Iterable[Cause], part: Part | None = None) -> Sequence[Array] | None:
        """Return the final outputs of the run that leaves causes out at all operators, and one cause at one of them."""
        left_out = frozenset(causes)
        return self._run((left_out, part), lambda: self._runs.without(left_out, part))

    def alone(self, cause: Cause) -> Sequence[Array] | None:
        """Return the final outputs of the run with one cause alone."""
        return self.without(set(ARISING) - {cause})

    def part_alone(self, part: Part) -> Sequence[Array] | None:
        """Return the final outputs of the run with one cause at one operator alone."""
        return self._run(part, lambda: self._runs.alone(part))

    def _run(self, key: object, run: Callable[[], Sequence[Array] | None]) -> Sequence[Array] | None:
        if key not in self._made:
            self._made[key] = run()
        return self._made[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arising:
    """The errors of one sample: the causes that arise at any operator, and the parts that may matter most."""

    causes: frozenset[Cause]
    estimates: Mapping[Part, Estimate]
    """The effects on the output that derivatives estimate."""
    always: Sequence[Part] = ()
    """Parts that are left out whatever their estimates are: of booleans, indices, infinities, or all parts."""
    why: str | None = None
    """The reason why there are no estimates; None if there are."""


def budget(ablation: Ablation, output: int, arising: Arising) -> OutputBudget:
    """Return the budget of a final output."""
    return _Budget(ablation, output, arising).result()


class _Budget:
    def __init__(self, ablation: Ablation, output: int, arising: Arising) -> None:
        outputs = ablation.outputs
        self._ablation, self._output, self._arising = ablation, output, arising
        self._eager, self._shipping = outputs.eager[output], outputs.shipping[output]
        self._debug = outputs.debug.get(output, self._shipping)
        self._signal = error_energy(self._eager, np.zeros_like(self._eager))
        self._whole = error_energy(self._shipping, self._eager)
        self._observer = signed_error(self._shipping, self._debug, np.float64)

    def result(self) -> OutputBudget:
        if self._whole == 0:
            return OutputBudget()
        known: set[Cause] = {*self._arising.causes, "observer"} if self._observer.any() else {*self._arising.causes}
        causes: list[Cause] = [cause for cause in CAUSES if cause in known]
        shares = self._shares(sorted(causes, key=lambda cause: self._without(cause)))
        totals = [self._total(cause, shares.get(cause, 0.0), cause in causes) for cause in ("graph", *ARISING)]
        observer = error_energy(self._debug, self._shipping), self._without("observer")
        totals.append(self._effect("observer", None, shares.get("observer", 0.0), *observer))
        totals.append(Effect(cause="unexplained", operator=None, share=shares.get("unexplained", 0.0), share_error=0.0))
        return OutputBudget(effects=(*totals, *self._operators()), why=self._why())

    def _shares(self, order: Sequence[Cause]) -> dict[Cause, float]:
        """Return what each step from the float model's output to the shipping program's adds.

        `order`: the causes, the one that is left out first at the beginning.
        """
        steps: list[tuple[Cause, float]] = [("graph", self._without(*ARISING, "observer"))]
        for position, cause in reversed(list(enumerate(order))):
            steps.append((cause, self._without(*order[:position])))
        steps.append(("unexplained", self._whole))
        levels = [level for _, level in steps]
        smallest = [min(levels[position:]) for position in range(len(levels))]
        shares: dict[Cause, float] = {}
        for (cause, _), (before, after) in zip(steps, pairwise([0.0, *smallest]), strict=True):
            shares[cause] = _share(before, after, self._whole)
        return shares

    def _total(self, cause: Cause, share: float, arises: bool) -> Effect:
        lowered = self._outputs(self._ablation.without(ARISING))
        if cause == "graph":
            return self._effect(cause, None, share, error_energy(lowered, self._eager))
        if not arises:
            return self._effect(cause, None, share, None)
        alone = self._outputs(self._ablation.alone(cause))
        return self._effect(cause, None, share, error_energy(alone, lowered), self._without(cause))

    def _operators(self) -> list[Effect]:
        """Return the effects at operators, the one whose absence removes most first."""
        lowered, left_out = self._outputs(self._ablation.without(ARISING)), self._candidates()
        ablated: list[tuple[float, Effect]] = []
        for cause, index in left_out:
            alone = error_energy(self._outputs(self._ablation.part_alone((cause, index))), lowered)
            without = self._without(part=(cause, index))
            share = _share(0.0, alone, self._whole)
            ablated.append((without, self._effect(cause, index, share, alone, without)))
        estimated = [
            Effect(
                cause=cause,
                operator=index,
                share=estimate.energy / self._whole,
                share_error=math.sqrt(estimate.variance) / self._whole,
                alone_snr_db=_snr_db(self._signal, estimate.energy),
            )
            for (cause, index), estimate in self._arising.estimates.items()
            if (cause, index) not in left_out
        ]
        ranked = [effect for _, effect in sorted(ablated, key=lambda pair: (pair[0], -(pair[1].share or 0.0)))]
        return [*ranked, *sorted(estimated, key=lambda effect: -(effect.share or 0.0))]

    def _candidates(self) -> list[Part]:
        """Return the parts that are left out one by one: those that may remove most, and those that may be largest."""
        known, least = self._arising.estimates, _LEAST * self._whole
        removing = sorted((part for part in known if known[part].removed >= least), key=lambda p: -known[p].removed)
        largest = sorted((part for part in known if known[part].energy >= least), key=lambda p: -known[p].energy)
        return list(dict.fromkeys([*self._arising.always, *removing[:_MOST_PARTS], *largest[:_MOST_PARTS]]))

    def _without(self, *causes: Cause, part: Part | None = None) -> float:
        """Return the energy of the error of the run that leaves causes out, and one cause at one operator."""
        left_out = set(causes) - {"observer"}
        outputs = self._outputs(self._ablation.without(left_out, part))
        if "observer" not in causes:
            outputs = shifted(outputs, self._observer, self._shipping)
        return error_energy(outputs, self._eager)

    def _outputs(self, outputs: Sequence[Array] | None) -> Array:
        return np.full_like(self._eager, np.nan) if outputs is None else outputs[self._output]

    def _effect(
        self, cause: Cause, operator: int | None, share: float, alone: float | None, without: float | None = None
    ) -> Effect:
        return Effect(
            cause=cause,
            operator=operator,
            share=share,
            share_error=0.0,
            alone_snr_db=None if alone is None else _snr_db(self._signal, alone),
            without_snr_db=None if without is None else _snr_db(self._signal, without),
        )

    def _why(self) -> str | None:
        full = self._outputs(self._ablation.without(()))
        if not error_energy(self._debug, full) <= SIGNIFICANT_SHARE * self._whole:
            return "; ".join(filter(None, (self._arising.why, "the operators that were logged do not give the output")))
        return self._arising.why


def shifted(outputs: Array, difference: Array, shipping: Array) -> Array:
    """Return the final output of a run with the difference of the shipping program's and the debug program's.

    An element whose difference is not finite is that of the shipping program: no run gives it.
    """
    if not difference.any():
        return outputs
    return np.where(np.isfinite(difference), outputs + difference, shipping)


def error_energy(values: Array, reference: Array) -> float:
    """Return the energy of a difference. It is infinite if an infinity or a NaN is on one side only."""
    if values.shape != reference.shape:
        return math.inf
    with np.errstate(invalid="ignore", over="ignore"):
        error = signed_error(values, reference, np.float64)
        same = (values == reference) | ((values != values) & (reference != reference))
        energy = float(np.square(np.where(same, 0.0, error)).sum())
    return math.inf if math.isnan(energy) else energy


def _share(before: float, after: float, whole: float) -> float:
    """Return the part of `whole` between two energies. If the whole is infinite, it is that of the step to infinity."""
    if math.isinf(whole):
        return 1.0 if math.isinf(after) and not math.isinf(before) else 0.0
    return min((after - before) / whole, MOST)


def _snr_db(signal: float, noise: float) -> float | None:
    return 10 * math.log10(signal / noise) if 0 < noise < math.inf and signal > 0 else None
