"""The judgement of a repair's steps: what a scheme reaches on every SoC, and what is missing to the target."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from qnnsweep.conf.repair import BudgetConfig, TargetConfig
from qnnsweep.tasks.records import Comparison, LoweredProgram
from qnnsweep.tasks.records.cell_rows import Finals
from qnnsweep.tasks.records.vocabulary import OWN_ERROR
from qnnsweep.tasks.results.outcome import CellResult, judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one program reaches on one SoC, over some of the samples."""

    finals: Finals
    introduced_operators: int
    size_bytes: int
    ddr_bytes: int | None
    spill_bytes: int | None
    cycles: float | None

    @property
    def mean_snr_db(self) -> float:
        """The SNR of the mean noise: infinite for outputs without an error, minus infinite for infinite noise."""
        if self.finals.mean_snr_db is not None:
            return self.finals.mean_snr_db
        return math.inf if self.finals.final_difference == "none" else -math.inf


def of_samples(cell: CellResult, samples: Collection[int]) -> CellResult:
    """Return the cell as if it had been measured on these samples only."""
    if cell.comparison is None or cell.exported is None:
        return cell
    comparison, exported = cell.comparison, cell.exported
    (method,) = exported.methods
    method = replace(
        method,
        sample_names=tuple(method.sample_names[sample] for sample in samples),
        labels=tuple(method.labels[sample] for sample in samples),
    )
    return replace(
        cell,
        exported=replace(exported, methods=(method,)),
        comparison=replace(
            comparison,
            outputs=tuple(row for row in comparison.outputs if row.sample in samples),
            metrics=tuple(row for row in comparison.metrics if row.sample in samples),
        ),
    )


def measurement(cell: CellResult) -> Measurement | None:
    """Return what a cell reaches; None if it was not compared, or if its outputs are not those of the model."""
    judged, comparison, lowered = judge(cell), cell.comparison, cell.lowered
    if comparison is None or lowered is None or judged.finals is None or judged.outcome == "failed":
        return None
    rows = (*comparison.operators, *comparison.requantized)
    return Measurement(
        finals=judged.finals,
        introduced_operators=len({row.operator.index for row in rows if row.verdict in OWN_ERROR}),
        size_bytes=lowered.program.size,
        ddr_bytes=_total(lowered, "read_total_bytes", "write_total_bytes"),
        spill_bytes=_total(lowered, "spill_bytes"),
        cycles=_cycles(comparison),
    )


def _total(lowered: LoweredProgram, *names: str) -> int | None:
    facts = [fact for method in lowered.methods for fact in method.compile_facts]
    return sum(getattr(fact, name) for fact in facts for name in names) if facts else None


def _cycles(comparison: Comparison) -> float | None:
    """Return the accelerator's mean cycles per inference; None if the program was not profiled."""
    totals = [
        event
        for event in comparison.profile
        if event.program == "profile" and event.kind == "accelerator" and event.unit == "cycles" and event.samples
    ]
    counts = [sum(event.raw) / len(event.raw) for event in totals if event.raw]
    return sum(counts) if counts else None


def gain_db(before: Sequence[Measurement], after: Sequence[Measurement]) -> float:
    """Return the gain of the mean SNR. Of several SoCs, the lowest SNR counts."""
    lowest = [min(measured.mean_snr_db for measured in side) for side in (before, after)]
    return 0.0 if lowest[0] == lowest[1] else lowest[1] - lowest[0]


def lowest_snr_db(measurements: Sequence[Measurement]) -> float | None:
    """Return the lowest final SNR of all SoCs; None if it is infinite or not measured."""
    known = [measured.finals.final_snr_db for measured in measurements]
    finite = [snr_db for snr_db in known if snr_db is not None]
    unequal = any(measured.finals.final_difference == "infinite" for measured in measurements)
    return min(finite) if finite and not unequal else None


def shortfalls(measured: Measurement, target: TargetConfig) -> Iterator[str]:
    """Yield a text per limit of the target that is not met."""
    final = measured.finals
    if target.final_snr_db is not None and final.final_difference != "none":
        if final.final_snr_db is None:
            yield "the final outputs have no finite SNR"
        elif final.final_snr_db < target.final_snr_db:
            yield f"final SNR {final.final_snr_db:.1f} dB is below {target.final_snr_db:g} dB"
    for name in ("top1_agreement", "accuracy"):
        least, reached = getattr(target, name), getattr(final, name)
        if least is not None and (reached is None or reached < least):
            has = "not defined" if reached is None else f"{100 * reached:.1f} %"
            yield f"{name.replace('_', ' ')} is {has}, the target is {100 * least:g} %"
    most = target.introduced_operators
    if most is not None and measured.introduced_operators > most:
        yield f"{measured.introduced_operators} operators introduce error, the target is {most}"


def excesses(measured: Measurement, before: Measurement, budget: BudgetConfig) -> Iterator[str]:
    """Yield a text per limit of the budget that a program exceeds. `before`: the program before the repair."""
    for key, name in (("size_ratio", "size_bytes"), ("ddr_ratio", "ddr_bytes"), ("cycles_ratio", "cycles")):
        most, value, reference = getattr(budget, key), getattr(measured, name), getattr(before, name)
        words = name.replace("_", " ")
        if most is not None and (value is None or reference is None):
            yield f"{words} are not known, budget.{key}={most:g}"
        elif most is not None and value > most * reference:
            times = f"{value / reference:.2f} times that before" if reference else f"{value:g}, and 0 before"
            yield f"{words} is {times}, budget.{key}={most:g}"
    most, spilled = budget.spill_bytes, measured.spill_bytes
    if most is not None and spilled is None:
        yield f"spilled bytes are not known, budget.spill_bytes={most}"
    elif most is not None and spilled is not None and spilled > most:
        yield f"{spilled} bytes are spilled, budget.spill_bytes={most}"
