"""The search for a scheme that reaches a target. It only decides; the caller compiles, executes and compares.

The search is greedy: it tries the candidate with most predicted gain per cost. If the measured SNR rises, the next
candidates come from the error budget of the changed program. If not, the change is reverted and is never tried again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qnnsweep.conf.repair import BudgetConfig, TargetConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.repair.candidates import LEAST_GAIN_DB, Candidate, candidates
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.results.repair import Measurement, excesses, gain_db, measurement, of_samples, shortfalls

Measure = Callable[[SchemeConfig], Sequence[CellResult]]
"""Returns the cells of a scheme, one per SoC: compiled, executed and compared, or with a reason why not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A scheme that was tried. Step 0 is the scheme before the repair."""

    number: int
    candidate: Candidate | None
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


@dataclass(kw_only=True, slots=True)
class Search:
    """The steps so far, and the reason why the search stopped."""

    target: TargetConfig
    budget: BudgetConfig
    samples: range
    """The samples that the search uses. All decisions are the same with and without the other samples."""
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
        first = self._step(scheme, None, measure(scheme))
        self._add(first, on_step)
        if (failure := next(filter(None, map(_failure, first.cells)), None)) is not None:
            self.reason = f"the program before the repair is not measured: {failure}"
            return
        while not self._stops():
            candidate = next((new for new in self._candidates() if self._is_new(new)), None)
            if candidate is None:
                least = f"no other candidate is predicted to gain {LEAST_GAIN_DB:g} dB"
                self.reason = f"nothing helps: {least}; {'; '.join(self._missing())}"
                return
            self._add(self._step(candidate.scheme, candidate, measure(candidate.scheme)), on_step)

    def _is_new(self, candidate: Candidate) -> bool:
        """Return whether neither the change nor the scheme that results from it was tried before."""
        return all(
            step.scheme != candidate.scheme and (step.candidate is None or step.candidate.key != candidate.key)
            for step in self.steps
        )

    def _stops(self) -> bool:
        """Return whether the target is reached or no further step is possible. Then `reason` says which."""
        missing = self._missing()
        if not missing:
            self.reached, self.reason = True, "the target is reached"
        elif self.steps[-1].compilations + len(self.steps[0].cells) > self.budget.compilations:
            self.reason = f"budget.compilations={self.budget.compilations} is used up; {'; '.join(missing)}"
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

    def _candidates(self) -> Sequence[Candidate]:
        """Return the candidates for the SoC with the lowest SNR."""
        step = self.accepted
        measured = _complete(step)
        worst = min(range(len(measured)), key=lambda number: measured[number].mean_snr_db)
        cell = step.cells[worst]
        assert cell.comparison is not None, "it was measured"
        assert cell.lowered is not None, "it was measured"
        most = math.inf
        if self.budget.size_ratio is not None:
            most = self.budget.size_ratio * _complete(self.steps[0])[worst].size_bytes - measured[worst].size_bytes
        return candidates(cell.comparison, cell.lowered, step.scheme, most_bytes=most)

    def _step(self, scheme: SchemeConfig, candidate: Candidate | None, complete: Sequence[CellResult]) -> Step:
        cells = [of_samples(cell, self.samples) for cell in complete]
        measurements = [measurement(cell) for cell in cells]
        gain, accepted, why = None, True, "the scheme before the repair"
        if candidate is not None:
            measured = [result for result in measurements if result is not None]
            gain = gain_db(_complete(self.accepted), measured) if len(measured) == len(cells) else None
            accepted, why = self._judged(cells, measured, gain)
        before = self.steps[-1].compilations if self.steps else 0
        return Step(
            number=len(self.steps),
            candidate=candidate,
            scheme=scheme,
            cells=cells,
            complete=complete,
            measurements=measurements,
            measured_db=gain,
            accepted=accepted,
            why=why,
            compilations=before + sum(cell.impossible is None for cell in cells),
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
        if gain >= LEAST_GAIN_DB:
            return True, "the mean SNR rises"
        if not any(list(shortfalls(side, self.target)) for side in measured):
            return True, "the target is reached"
        return False, f"the mean SNR rises by less than {LEAST_GAIN_DB:g} dB"

    def _add(self, step: Step, on_step: Callable[[Step], None]) -> None:
        self.steps.append(step)
        on_step(step)


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
