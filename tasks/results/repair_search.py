"""The search for a scheme that reaches a target. It only decides; the caller compiles, executes and compares.

The search is greedy: of the candidates that were tried on the host, it compiles the one with most predicted gain per
cost. If the number that the target is about rises, the next candidates come from the error budget of the changed
program. If not, the change is reverted, and no change of the same kind is made at these operators again. The size of a
program is predicted from the bits of its weights: one that is larger than the target all the same is reverted, too, and
the next changes are tried for a size that is smaller by what it grew more than predicted.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from qnnsweep.conf.repair import BudgetConfig, TargetConfig
from qnnsweep.conf.schemes import ChangeConfig, SchemeConfig
from qnnsweep.conf.units import KIB
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from qnnsweep.tasks.repair.cures import Cure, cures
from qnnsweep.tasks.repair.prediction import gain_db, statistic_of
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.results.repair import (
    Measurement,
    excesses,
    measurement,
    metric_miss,
    of_samples,
    oversize,
    reached_db,
    shortfalls,
    size_shortfalls,
    uncertain,
)

LEAST_GAIN_DB = 0.1
_REACHED = "the target is reached"


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """The target for which changes of a scheme are tried on the host, and those that are not tried again."""

    target: TargetConfig
    measured: Sequence[ChangeConfig]


Measure = Callable[[SchemeConfig, Aim | None], Sequence[CellResult]]
"""Returns the cells of a scheme, one per SoC: compiled, executed and compared, or with a reason why not.

Called with an aim for a scheme that was measured, it returns the same cells with the changes that were tried on the
host for it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A scheme that was tried. Step 0 is the scheme before the repair."""

    number: int
    candidate: Candidate | None
    predicted_db: float | None
    scheme: SchemeConfig
    cells: Sequence[CellResult]
    """The cells, one per SoC, with the samples of the search only."""
    complete: Sequence[CellResult]
    """The cells with all samples."""
    measurements: Sequence[Measurement | None]
    """What the scheme reaches, per cell; None for a cell that was not measured."""
    measured_db: float | None
    accepted: bool
    why: str
    compilations: int
    """The number of compilations up to this step."""
    excess_kib: int = 0
    """By how much the program grew more than its weights say, if it was reverted because it is too large."""


@dataclass(kw_only=True, slots=True)
class Search:
    """The steps so far, and the reason why the search stopped."""

    target: TargetConfig
    budget: BudgetConfig
    samples: range
    """The samples that the search uses. All decisions are the same with and without the other samples, but for parts of
    outputs that a scheme rounds to constants: those are looked for in all samples."""
    steps: list[Step] = field(default_factory=list["Step"])
    reached: bool = False
    reason: str = ""

    @property
    def accepted(self) -> Step:
        """The last accepted step."""
        return next(step for step in reversed(self.steps) if step.accepted)

    @property
    def changes(self) -> list[Step]:
        """The accepted steps that changed the scheme."""
        return [step for step in self.steps if step.accepted and step.candidate is not None]

    def run(self, scheme: SchemeConfig, measure: Measure, on_step: Callable[[Step], None]) -> None:
        """Search, beginning with `scheme`. Call `on_step` with every step that was tried."""
        first = self._step(scheme, None, measure(scheme, None))
        self._add(first, on_step)
        if (failure := next(filter(None, map(_failure, first.cells)), None)) is not None:
            self.reason = f"the program before the repair is not measured: {failure}"
            return
        while not self._stops():
            cure = next(iter(self._cures(measure)), None)
            if cure is None:
                least, missing = f"no other candidate is predicted to gain {LEAST_GAIN_DB:g} dB", self._missing()
                self.reached = not missing
                self.reason = f"nothing helps: {least}; {'; '.join(missing)}" if missing else f"{_REACHED}, and {least}"
                return
            scheme = cure.candidate.scheme
            self._add(self._step(scheme, cure, measure(scheme, None)), on_step)

    def certify(self, unseen: Collection[int]) -> None:
        """Let the target hold only if unseen samples confirm it. Say so if the target held there before the repair.

        `unseen`: the samples that neither the calibration nor the search has used.
        """
        if not self.reached:
            return
        doubts = self._doubts(self.accepted, unseen)
        if doubts:
            self.reached = False
            self.reason = (
                f"not certified: the target holds on the samples of the search, but on unseen ones {doubts[0]}"
            )
            return
        self.reason += f"; certified on {len(unseen)} unseen {'sample' if len(unseen) == 1 else 'samples'}"
        if self.changes and not self._doubts(self.steps[0], unseen):
            self.reason += ", where it held before the repair, too"

    def _doubts(self, step: Step, unseen: Collection[int]) -> list[str]:
        """Return one text per reason why unseen samples do not confirm the target for the scheme of a step."""
        measured = [measurement(of_samples(cell, unseen)) for cell in step.complete] if unseen else []
        if not measured or None in measured:
            return ["nothing was measured; give more samples than the calibration and the search use"]
        return [text for side in measured if side is not None for text in uncertain(side, self.target)]

    @property
    def _known(self) -> list[ChangeConfig]:
        """The changes of all steps. The scheme before the repair is one for no cause.

        A change that made the program too large has not failed: it can help with fewer bits.
        """
        return [
            _known(step.candidate, step.scheme, has_failed=not step.accepted and not step.excess_kib)
            for step in self.steps
        ]

    @property
    def _aim(self) -> TargetConfig:
        """The target for which changes are tried: smaller by what a program grew more than its weights say.

        A program that is small enough need not become smaller.
        """
        limit_kib = self.target.size_kib
        if limit_kib is None:
            return self.target
        now_kib = math.ceil(max(side.size_bytes for side in _complete(self.accepted)) / KIB)
        less_kib = limit_kib - max(step.excess_kib for step in self.steps)
        return replace(self.target, size_kib=max(less_kib, min(now_kib, limit_kib)))

    def _stops(self) -> bool:
        """Return whether the target is reached or no further step is possible. Then `reason` says which."""
        missing = self._missing()
        used_up = f"budget.compilations={self.budget.compilations} is used up"
        if not missing and not self.target.is_of_size:
            self.reached, self.reason = True, _REACHED
        elif self.steps[-1].compilations + len(self.steps[0].cells) > self.budget.compilations:
            self.reached = not missing
            self.reason = f"{used_up}; {'; '.join(missing)}" if missing else f"{_REACHED}, and {used_up}"
        return bool(self.reason)

    def _missing(self) -> list[str]:
        """Return the limits that are not met, of the SoC with the most of them.

        The budget counts too: the program before the repair can exceed it, if it must become smaller.
        """
        both = zip(_complete(self.accepted), _complete(self.steps[0]), strict=True)
        missing = [
            [*shortfalls(measured, self.target), *excesses(measured, first, self.budget)] for measured, first in both
        ]
        return max(missing, key=len)

    def _cures(self, measure: Measure) -> Sequence[Cure]:
        """Return the candidates that were tried for the SoC with the lowest SNR, and that should help.

        If none should, others are tried.
        """
        statistic = statistic_of(self.target)
        step = self.accepted
        measured = _complete(step)
        worst = min(range(len(measured)), key=lambda number: statistic(measured[number].noise))
        most = math.inf
        if self.budget.size_ratio is not None:
            most = self.budget.size_ratio * _complete(self.steps[0])[worst].size_bytes - measured[worst].size_bytes
        aim = Aim(target=self._aim, measured=self._known)
        while True:
            cell = of_samples(measure(step.scheme, aim)[worst], self.samples)
            assert cell.comparison is not None, "it was measured"
            assert cell.lowered is not None, "it was measured"
            if cell.cures is None:
                return ()
            given = cell.comparison, cell.lowered, step.scheme, aim.target, cell.cures.allocations, aim.measured
            offered = candidates(*given, most_bytes=most)
            found = cures(cell.cures, offered, cell.comparison, cell.lowered, statistic, is_measured=True)
            needed = [cure for cure in found if cure.candidate.is_needed]
            if useful := needed or [cure for cure in found if cure.predicted_db >= LEAST_GAIN_DB]:
                return useful
            tried = {trial.key for trial in cell.cures.trials}
            useless = [_known(new, new.scheme) for new in candidates(*given) if new.key in tried]
            if not useless:
                return ()
            aim = replace(aim, measured=[*aim.measured, *useless])

    def _step(self, scheme: SchemeConfig, cure: Cure | None, complete: Sequence[CellResult]) -> Step:
        cells = [of_samples(cell, self.samples) for cell in complete]
        measurements = [measurement(cell) for cell in cells]
        gain, accepted, why, excess_kib = None, True, "the scheme before the repair", 0
        if cure is not None:
            measured = [result for result in measurements if result is not None]
            if len(measured) == len(cells):
                statistic = statistic_of(self.target)
                gain = gain_db(reached_db(_complete(self.accepted), statistic), reached_db(measured, statistic))
            accepted, why = self._judged(cells, measured, gain)
            if gain is not None and not accepted:
                excess_kib = self._excess_kib(cells, measured)
        before = self.steps[-1].compilations if self.steps else 0
        return Step(
            number=len(self.steps),
            candidate=cure.candidate if cure else None,
            predicted_db=cure.predicted_db if cure else None,
            scheme=scheme,
            cells=cells,
            complete=complete,
            measurements=measurements,
            measured_db=gain,
            accepted=accepted,
            why=why,
            compilations=before + sum(cell.impossible is None for cell in cells),
            excess_kib=excess_kib,
        )

    def _judged(
        self, cells: Sequence[CellResult], measured: Sequence[Measurement], gain: float | None
    ) -> tuple[bool, str]:
        if gain is None:
            return False, next(filter(None, map(_failure, cells)), "not measured")
        before = _complete(self.steps[0])
        for side, first in zip(measured, before, strict=True):
            if (excess := next(excesses(side, first, self.budget), None)) is not None:
                return False, excess
        last = _complete(self.accepted)
        both = [(side.mistakes, old.mistakes) for side, old in zip(measured, last, strict=True)]
        if made := [mistake for now, old in both for mistake in sorted(now - old)]:
            return False, made[0]
        size, bits = self._size(measured)
        size_before, bits_before = self._size(last)
        if size > 1 >= size_before:
            return False, next(text for side in measured for text in size_shortfalls(side, self.target))
        if size_before > 1:
            if size < size_before:
                return True, "the program becomes smaller"
            # HTP pads what it packs: a program can keep its size, and become smaller with the next bits.
            has_fewer = size == size_before and bits < bits_before
            return has_fewer, f"the weights have {'fewer' if has_fewer else 'no fewer'} bits"
        if cured := [mistake for now, old in both for mistake in sorted(old - now)]:
            return True, f"cured: {cured[0]}"
        if self.target.metric is not None:
            miss, miss_before = self._miss(measured), self._miss(last)
            if miss != miss_before:
                words = "nearer to" if miss < miss_before else "farther from"
                return miss < miss_before, f"{self.target.metric} gets {words} its limit"
        if gain >= LEAST_GAIN_DB:
            return True, f"the {self._number} rises"
        if not self.target.is_of_size and not any(list(shortfalls(side, self.target)) for side in measured):
            return True, _REACHED
        return False, f"the {self._number} rises by less than {LEAST_GAIN_DB:g} dB"

    def _size(self, measured: Sequence[Measurement]) -> tuple[float, float]:
        """Return by what the largest program exceeds the target's size, and the mean number of bits of a weight."""
        sizes = [oversize(side, self.target) for side in measured]
        return max(sizes), max(side.effective_bits or 0.0 for side in measured)

    def _excess_kib(self, cells: Sequence[CellResult], measured: Sequence[Measurement]) -> int:
        """Return by how much a program that is too large grew more than its weights say; 0 for any other program."""
        before = _complete(self.accepted)
        size_kib = self.target.size_kib
        largest = max(side.size_bytes for side in measured)
        largest_before = max(side.size_bytes for side in before)
        if size_kib is None or not largest_before <= size_kib * KIB < largest:
            return 0
        growth = max(side.size_bytes - old.size_bytes for side, old in zip(measured, before, strict=True))
        of_weights = max(
            _weight_bytes(cell) - _weight_bytes(old) for cell, old in zip(cells, self.accepted.cells, strict=True)
        )
        return math.ceil(max(growth - of_weights, largest - size_kib * KIB) / KIB)

    def _miss(self, measured: Sequence[Measurement]) -> float:
        return max(metric_miss(side, self.target) for side in measured)

    @property
    def _number(self) -> str:
        quantile = statistic_of(self.target).quantile
        return "mean SNR" if quantile is None else "SNR of the quantile" if quantile else "lowest SNR"

    def _add(self, step: Step, on_step: Callable[[Step], None]) -> None:
        self.steps.append(step)
        on_step(step)


def _known(candidate: Candidate | None, scheme: SchemeConfig, *, has_failed: bool = False) -> ChangeConfig:
    return ChangeConfig(
        cause=candidate.cause if candidate else "",
        change=candidate.change if candidate else "",
        operators=[*candidate.operators] if candidate else [],
        scheme=scheme,
        has_failed=has_failed,
    )


def _weight_bytes(cell: CellResult) -> float:
    return 0.0 if cell.lowered is None else sum(method.weight_bits for method in cell.lowered.methods) / 8


def _complete(step: Step) -> list[Measurement]:
    return [measured for measured in step.measurements if measured is not None]


def _failure(cell: CellResult) -> str | None:
    """Return why a cell was not measured; None if it was."""
    if measurement(cell) is not None:
        return None
    judged = judge(cell)
    words = (judged.reason or str(cell.error or "")).strip().partition("\n")[0]
    stage = f" in {cell.stage}" if cell.stage and judged.outcome != "impossible" else ""
    return f"{judged.outcome}{stage} on {cell.request.soc.name}: {words}"
