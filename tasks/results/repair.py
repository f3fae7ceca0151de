"""The judgement of a repair's steps: what a scheme reaches on every SoC, and what is missing to the target."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from qnnsweep.conf.repair import BudgetConfig, TargetConfig
from qnnsweep.conf.units import KIB
from qnnsweep.tasks.numerics.interval import bootstrap_interval
from qnnsweep.tasks.numerics.noise import MethodSample
from qnnsweep.tasks.numerics.token_scores import score_statistics
from qnnsweep.tasks.records import Comparison, ExportedMethod, LoweredProgram
from qnnsweep.tasks.records.cell_rows import Finals
from qnnsweep.tasks.records.vocabulary import OWN_ERROR
from qnnsweep.tasks.repair.allocation import effective_bits
from qnnsweep.tasks.repair.prediction import Statistic, noise_at
from qnnsweep.tasks.results.outcome import CellResult, another_scheme_can_help, failed_checks, judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one program reaches on one SoC, over some of the samples."""

    finals: Finals
    noise: tuple[float, ...]
    """Per sample, the noise-to-signal ratio of the worst final output."""
    metric: tuple[float, ...]
    """Per sample, the mean of the target's metric over the final outputs; only of samples for which it has a value."""
    metric_problem: str | None
    """Why the metric has no mean that counts: it failed for a sample, or has no value for any."""
    mistakes: frozenset[str]
    """What the rounding of the scheme makes constant in final outputs, over all samples; no target is met with it."""
    introduced_operators: int
    size_bytes: int
    effective_bits: float | None
    """The mean number of bits of an element of the weights; None for a program without weights."""
    ddr_bytes: int | None
    spill_bytes: int | None
    cycles: float | None


def of_samples(cell: CellResult, samples: Collection[int]) -> CellResult:
    """Return the cell as if it had been measured on these samples of the model only."""
    if cell.comparison is None or cell.exported is None:
        return cell
    comparison, exported = cell.comparison, cell.exported
    by_method = {method.method: method.samples_of(samples) for method in exported.methods}
    steps = tuple(step for step in comparison.steps if step.sample in samples)
    return replace(
        cell,
        exported=replace(
            exported, methods=tuple(_of_samples(method, by_method[method.method]) for method in exported.methods)
        ),
        comparison=replace(
            comparison,
            outputs=tuple(row for row in comparison.outputs if row.sample in by_method.get(row.method, ())),
            metrics=tuple(row for row in comparison.metrics if row.sample in by_method.get(row.method, ())),
            steps=steps,
            scores=score_statistics(steps),
        ),
    )


def _of_samples(method: ExportedMethod, samples: Sequence[int]) -> ExportedMethod:
    return replace(
        method,
        sample_names=tuple(method.sample_names[sample] for sample in samples),
        labels=tuple(method.labels[sample] for sample in samples),
        positions=None if method.positions is None else tuple(method.positions[sample] for sample in samples),
    )


def measurement(cell: CellResult) -> Measurement | None:
    """Return what a cell reaches; None if it was not compared, or if no scheme makes its outputs those of the model."""
    judged, comparison, lowered = judge(cell), cell.comparison, cell.lowered
    if comparison is None or lowered is None or judged.finals is None or not another_scheme_can_help(cell):
        return None
    rows = (*comparison.operators, *comparison.requantized)
    metric, metric_problem = _metric(comparison, cell.request.target.metric)
    return Measurement(
        finals=judged.finals,
        noise=tuple(noise_at("device", comparison).values()),
        metric=metric,
        metric_problem=metric_problem,
        mistakes=frozenset(check.mistake for check in failed_checks(comparison)),
        introduced_operators=len({row.operator.index for row in rows if row.verdict in OWN_ERROR}),
        size_bytes=lowered.program.size,
        effective_bits=effective_bits(lowered),
        ddr_bytes=_total(lowered, "read_total_bytes", "write_total_bytes"),
        spill_bytes=_total(lowered, "spill_bytes"),
        cycles=_cycles(comparison),
    )


def _metric(comparison: Comparison, name: str | None) -> tuple[tuple[float, ...], str | None]:
    """Return the values of a metric per sample, and the reason if they have no mean that counts."""
    values: dict[MethodSample, list[float]] = {}
    rows = [row for row in comparison.metrics if row.metric == name and row.operator is None and row.rung == "device"]
    for row in rows:
        if row.value is not None:
            values.setdefault((row.method, row.sample), []).append(row.value)
    problem = next((row.problem for row in rows if row.problem is not None), None)
    if not values and problem is None:
        problem = "it has no value for any sample"
    return tuple(mean(of_sample) for of_sample in values.values()), problem


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


def reached_db(measurements: Sequence[Measurement], statistic: Statistic) -> float:
    """Return the statistic of the SoC where it is lowest."""
    return min(statistic(measured.noise) for measured in measurements)


def lowest_snr_db(measurements: Sequence[Measurement]) -> float | None:
    """Return the lowest final SNR of all SoCs; None if it is infinite or not measured."""
    known = [measured.finals.final_snr_db for measured in measurements]
    finite = [snr_db for snr_db in known if snr_db is not None]
    unequal = any(measured.finals.final_difference == "infinite" for measured in measurements)
    return min(finite) if finite and not unequal else None


def oversize(measured: Measurement, target: TargetConfig) -> float:
    """Return by what the size of a program must be divided to be that of the target; at most 1 for a small one."""
    return max(
        0.0 if target.size_kib is None else measured.size_bytes / (target.size_kib * KIB),
        0.0 if target.effective_bits is None else (measured.effective_bits or 0.0) / target.effective_bits,
    )


def shortfalls(measured: Measurement, target: TargetConfig) -> Iterator[str]:
    """Yield a text per limit of the target that is not met."""
    yield from size_shortfalls(measured, target)
    yield from sorted(measured.mistakes)
    final = measured.finals
    if target.final_snr_db is not None and final.final_difference != "none":
        if final.final_snr_db is None:
            yield "the final outputs have no finite SNR"
        elif final.final_snr_db < target.final_snr_db:
            yield f"final SNR {final.final_snr_db:.1f} dB is below {target.final_snr_db:g} dB"
    of_samples: tuple[tuple[float | None, Statistic, str], ...] = (
        (target.mean_snr_db, Statistic(None), "mean SNR"),
        (
            target.quantile_snr_db,
            Statistic(target.quantile),
            f"SNR of all but {100 * target.quantile:g} % of the samples",
        ),
    )
    for least, statistic, name in of_samples:
        if least is not None and (snr_db := statistic(measured.noise)) < least:
            yield f"{name} {snr_db:.1f} dB is below {least:g} dB"
    for name in ("top1_agreement", "accuracy"):
        least, reached = getattr(target, name), getattr(final, name)
        if least is not None and (reached is None or reached < least):
            has = "not defined" if reached is None else f"{100 * reached:.1f} %"
            yield f"{name.replace('_', ' ')} is {has}, the target is {100 * least:g} %"
    yield from metric_shortfalls(measured, target)
    most = target.introduced_operators
    if most is not None and measured.introduced_operators > most:
        yield f"{measured.introduced_operators} operators introduce error, the target is {most}"


def metric_shortfalls(measured: Measurement, target: TargetConfig) -> Iterator[str]:
    """Yield a text if the metric has no mean, and one per limit that its mean is beyond."""
    if target.metric is None:
        return
    if measured.metric_problem is not None:
        yield f"{target.metric} is not defined: {measured.metric_problem}"
        return
    value = mean(measured.metric)
    yield from (f"{target.metric} is {value:.4g}, {limit}" for limit in _beyond(value, target))


def metric_miss(measured: Measurement, target: TargetConfig) -> float:
    """Return by how much the mean of the metric misses its limit; infinite if the metric has no mean."""
    if measured.metric_problem is not None:
        return math.inf
    value = mean(measured.metric)
    least, most = target.metric_at_least, target.metric_at_most
    return max(0.0 if least is None else least - value, 0.0 if most is None else value - most, 0.0)


def _beyond(value: float, target: TargetConfig) -> Iterator[str]:
    least, most = target.metric_at_least, target.metric_at_most
    if least is not None and value < least:
        yield f"the target is at least {least:g}"
    if most is not None and value > most:
        yield f"the target is at most {most:g}"


def size_shortfalls(measured: Measurement, target: TargetConfig) -> Iterator[str]:
    """Yield a text per limit of the target's size that is not met."""
    if target.size_kib is not None and measured.size_bytes > target.size_kib * KIB:
        yield f"the program has {measured.size_bytes / KIB:,.0f} KiB, the target is {target.size_kib:,}"
    bits = measured.effective_bits
    if target.effective_bits is not None and bits is not None and bits > target.effective_bits:
        yield f"a weight has {bits:.2f} bits in the mean, the target is {target.effective_bits:g}"


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


def uncertain(measured: Measurement, target: TargetConfig) -> Iterator[str]:
    """Yield a text per limit of the target that unseen samples do not confirm: it is met, but not with certainty.

    The lowest SNR and the quantile are facts about the samples. A mean and a share are estimates: the bound of their
    95 % interval must meet the limit, unless all samples do.
    """
    yield from shortfalls(measured, target)
    final = measured.finals
    if target.metric is not None and not list(metric_shortfalls(measured, target)):
        interval = bootstrap_interval(measured.metric)
        for bound in () if interval is None else interval:
            yield from (f"{target.metric} may be {bound:.4g}, {limit}" for limit in _beyond(bound, target))
    least, low = target.mean_snr_db, final.mean_snr_db_low
    if least is not None and not list(shortfalls(measured, target)) and low is not None and low < least:
        yield f"mean SNR may be {low:.1f} dB, below {least:g} dB"
    for name in ("top1_agreement", "accuracy"):
        least, reached, low = (
            getattr(source, key) for source, key in ((target, name), (final, name), (final, f"{name}_low"))
        )
        if least is not None and reached is not None and least <= reached < 1 and (low is None or low < least):
            yield f"{name.replace('_', ' ')} may be {100 * (low or 0):.1f} %, the target is {100 * least:g} %"
