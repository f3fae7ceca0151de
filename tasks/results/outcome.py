"""The outcome of a cell and the reason for it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable, EvidenceError, MachineFault, shortage_behind
from qnnsweep.tasks.numerics.interval import bootstrap_interval, share
from qnnsweep.tasks.numerics.noise import in_db, lowest_snr, noise_by_sample
from qnnsweep.tasks.records import (
    Blob,
    Bundle,
    Capture,
    CaseOutcome,
    Comparison,
    Cures,
    ExportedModel,
    IoCheck,
    LoweredProgram,
    OutputComparison,
    QuantizedModel,
    StepComparison,
    Toolchain,
)
from qnnsweep.tasks.records.cell_rows import Finals, Limits
from qnnsweep.tasks.records.vocabulary import OWN_ERROR, Outcome
from qnnsweep.tasks.results.failure import failure_reason, first_line, without_operators
from qnnsweep.tasks.results.headline import difference, equal_elements, headline, lowest_share, rows_of_top1, with_snr

_NONE_NAMED: Mapping[str, str] = {}
_NOT_THE_CELL = (DeviceError, EnvironmentUnusable, EvidenceError, MachineFault)


@dataclass(kw_only=True, slots=True)
class CellResult:
    """A planned cell and the records of the stages that were completed for it."""

    request: Request
    impossible: str | None = None  # why the plan excludes the cell
    toolchain: Toolchain | None = None  # the versions of the cell's toolchain; None if no stage needed it
    code: str | None = None  # digest of the model's code and files; None if no stage needed it
    exported: ExportedModel | None = None
    quantized: QuantizedModel | None = None
    lowered: LoweredProgram | None = None
    bundle: Bundle | None = None
    capture: Capture | None = None
    comparison: Comparison | None = None
    cures: Cures | None = None
    cases: tuple[CaseOutcome, ...] | None = None  # of a collection; None for a model
    case_logs: tuple[Blob, ...] = ()
    stage: str | None = None  # the last stage that was started; None if no stage was
    error: BaseException | None = None  # the error of the last stage
    seconds: dict[str, float] = field(default_factory=dict[str, float])  # of the stages outside of workers that ran
    result_names: dict[str, str] = field(default_factory=dict[str, str])  # names of the stored results, by field


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The outcome of a cell, and the figures and limits that decide it."""

    outcome: Outcome
    reason: str | None
    """None if `cell.error` states it or if none is needed."""
    finals: Finals | None
    """None if the cell was not compared."""
    limits: Limits
    missed_limits: tuple[str, ...]
    """The names of the columns whose values are beyond their limits."""


def judge(cell: CellResult) -> Judgement:
    """Return the judgement of a cell. It takes thousands of samples of the bootstrap: judge a cell once."""
    limits, final, shortfalls = _limits(cell), None, list[tuple[str, str]]()
    if cell.comparison is not None:
        final = finals(cell.comparison, cell.request.tolerance.headline, classifier=cell.request.model.classifier)
        shortfalls += _shortfalls(cell.comparison, final, limits)
        known = {column for column, _ in shortfalls}
        of_shares = _of_shares(cell.comparison, cell.request.tolerance.headline, limits)
        shortfalls += [shortfall for shortfall in of_shares if shortfall[0] not in known]
    outcome, reason = _outcome(cell, [description for _, description in shortfalls])
    missed = tuple(column for column, _ in shortfalls)
    return Judgement(outcome=outcome, reason=reason, finals=final, limits=limits, missed_limits=missed)


def _outcome(cell: CellResult, shortfalls: Sequence[str]) -> tuple[Outcome, str | None]:
    if cell.impossible is not None:
        return "impossible", cell.impossible
    if cell.error is not None:
        is_not_the_cell = isinstance(cell.error, _NOT_THE_CELL) or shortage_behind(cell.error) is not None
        reason = failure_reason(cell.error, cell.lowered, cell.request)
        return ("infrastructure" if is_not_the_cell else "failed"), reason
    if cell.cases is not None:
        return "passed", None
    assert cell.comparison is not None, "a cell without an error is complete"
    if (changed := graph_change(cell)) is not None:
        return "failed", changed
    if wrong := failed_checks(cell.comparison):
        return "failed", f"not comparable with the model: {in_words(wrong[0])}; the table `probe` has the evidence"
    if shortfalls:
        return "out_of_tolerance", "; ".join(shortfalls)
    return "passed", "; ".join(_unavailable(cell)) or None


def failed_checks(comparison: Comparison) -> list[IoCheck]:
    """Return the mistakes at the program's inputs and outputs that fail a cell, first those that no scheme cures."""
    failed = [check for check in comparison.io_checks if check.status == "failed"]
    return sorted(failed, key=lambda check: check.of_the_scheme)


def another_scheme_can_help(cell: CellResult) -> bool:
    """Return whether a cell did not fail, or only because a part of an output is constant in its design, too.

    The outputs of any other cell that failed are not those of the model, whatever its scheme is.
    """
    if cell.error is not None or cell.comparison is None or graph_change(cell) is not None:
        return False
    return all(check.of_the_scheme for check in failed_checks(cell.comparison))


def in_words(check: IoCheck) -> str:
    """Return the mistake of a check that failed, with what shows it in brackets."""
    return f"{check.mistake} ({check.detail})" if check.detail else check.mistake


def graph_change(cell: CellResult) -> str | None:
    """Return what makes the lowered graph of a method another function than the model; None if nothing does."""
    methods = cell.lowered.methods if cell.lowered else ()
    return next((method.graph_change for method in methods if method.graph_change), None)


def _unavailable(cell: CellResult) -> Iterator[str]:
    """Yield why operators or cycles that were requested are missing."""
    unlogged = without_operators(cell.lowered, cell.capture)
    for lowered in cell.lowered.methods if cell.lowered else ():
        method = lowered.exported.method
        of_method = "" if method is None else f" of {method}"
        if lowered.exported.name in unlogged and cell.request.measure.dump_operators:
            yield f"no operators{of_method}: {unlogged[lowered.exported.name]}"
        for none in lowered.unlogged:
            names = [row.name for row in lowered.operators[none.span.first : none.span.end] if row.shape is not None]
            yield f"{', '.join(names)}{of_method} not logged: {first_line(none.reason)}"
        if lowered.profile is not None and lowered.profile.unavailable:
            yield f"no cycles{of_method}: {lowered.profile.unavailable}"


def finals(comparison: Comparison, named: Mapping[str, str] = _NONE_NAMED, *, classifier: bool = False) -> Finals:
    """Return the measures of the device's final outputs, and the intervals of those that are means over the samples.

    `named`: `tolerance.headline`. `classifier`: whether every row of an output with several rows is an answer, too.
    """
    device = [row for row in on_device(comparison) if row.status != "diverged"]
    measured = with_snr(device, named)
    ranked = [row for row in device if row.top1_reference is not None and row.top1_actual is not None]
    labelled = [row for row in ranked if row.label is not None]
    final_difference, final_snr_db = difference(device, named)
    device_difference, device_snr_db = lowest_snr(
        [
            (row.previous_status, row.previous_snr_db)
            for row in measured or device
            if row.previous_status is not None and row.previous_status != "no_value"
        ]
    )
    mean_snr_db, mean_snr_db_low, mean_snr_db_high = _mean_snr([*noise_by_sample(measured).values()])
    agreeing = [row.top1_actual == row.top1_reference for row in ranked]
    agreeing += _agreeing_rows(device) if classifier else ()
    right = [row.top1_actual == row.label for row in labelled]
    right_eager = [row.top1_reference == row.label for row in labelled]
    if any(step.token is not None for step in comparison.steps):
        agreeing, right, right_eager = _by_sequence(comparison.steps)
    top1_agreement, top1_agreement_low, top1_agreement_high = share(agreeing)
    accuracy, accuracy_low, accuracy_high = share(right)
    scores = {score.statistic: score.value for score in comparison.scores}
    return Finals(
        final_difference=final_difference,
        final_snr_db=final_snr_db,
        mean_snr_db=mean_snr_db,
        mean_snr_db_low=mean_snr_db_low,
        mean_snr_db_high=mean_snr_db_high,
        device_difference=device_difference,
        device_snr_db=device_snr_db,
        final_cosine=min((row.gap.cosine for row in device if row.gap.cosine is not None), default=None),
        final_max_abs=max((row.gap.max_abs for row in device if row.gap.max_abs is not None), default=None),
        top1_agreement=top1_agreement,
        top1_agreement_low=top1_agreement_low,
        top1_agreement_high=top1_agreement_high,
        accuracy=accuracy,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        accuracy_eager=share(right_eager)[0],
        kl_divergence_nats=scores.get("kl_divergence_mean"),
        perplexity_ratio=scores.get("perplexity_ratio"),
        centred_snr_db=min((row.centred_snr_db for row in device if row.centred_snr_db is not None), default=None),
        row_snr_db=min((row.row_snr_db for row in device if row.row_snr_db is not None), default=None),
        row_top1_agreement=lowest_share(device, rows_of_top1),
        equal_elements=lowest_share(device, equal_elements),
    )


def _agreeing_rows(rows: Iterable[OutputComparison]) -> Iterator[bool]:
    """Yield, per row of the outputs that have several rows, whether the largest element is that of eager PyTorch."""
    for row in rows:
        if row.rows is not None and row.rows > 1 and row.rows_same_top1 is not None:
            yield from [True] * row.rows_same_top1
            yield from [False] * (row.rows - row.rows_same_top1)


def _by_sequence(steps: Sequence[StepComparison]) -> tuple[list[bool], list[bool], list[bool]]:
    """Return, per sequence with tokens, whether all tokens are those of eager PyTorch.

    Return also, per sequence with labels, whether all tokens are right on the device, and in eager PyTorch.
    """
    chosen = [step for step in steps if step.token is not None]
    labelled = [step for step in chosen if step.label is not None]
    return (
        _all_of_sequence((step.sample, step.token == step.token_reference) for step in chosen),
        _all_of_sequence((step.sample, step.token == step.label) for step in labelled),
        _all_of_sequence((step.sample, step.token_reference == step.label) for step in labelled),
    )


def _all_of_sequence(hits: Iterable[tuple[int, bool]]) -> list[bool]:
    sequences: dict[int, bool] = {}
    for sequence, hit in hits:
        sequences[sequence] = hit and sequences.get(sequence, True)
    return list(sequences.values())


def on_device(comparison: Comparison) -> list[OutputComparison]:
    return [row for row in comparison.outputs if row.rung == "device"]


def _limits(cell: CellResult) -> Limits:
    """Return the limits of the cell's tolerance."""
    tolerance, scheme = cell.request.tolerance, cell.request.scheme.name
    # With random weights the scores are so near each other that the index of the largest is arbitrary.
    random_weights = cell.exported is None or "random" in cell.exported.model.weights.split(", ")
    return Limits(
        final_snr_db_limit=tolerance.final_snr_db.get(scheme),
        top1_agreement_limit=None if random_weights else tolerance.top1_agreement.get(scheme),
        equal_elements_limit=None if random_weights else tolerance.equal_elements.get(scheme),
        kl_divergence_nats_limit=tolerance.kl_divergence_nats.get(scheme),
        perplexity_ratio_limit=tolerance.perplexity_ratio.get(scheme),
        operators_introduced_limit=tolerance.introduced_operators,
    )


def _shortfalls(comparison: Comparison, final: Finals, allowed: Limits) -> Iterator[tuple[str, str]]:
    """Yield the column of each value that is beyond its limit, and a description for the reason."""
    for row in on_device(comparison):
        if (what := problem(row)) is not None:
            yield "final_difference", f"output {row.output} of {row.sample_name}: {what}"
            break
    least_db = allowed.final_snr_db_limit
    if least_db is not None and final.final_snr_db is not None and final.final_snr_db < least_db:
        yield "final_snr_db", f"final SNR {final.final_snr_db:.1f} dB is below {least_db:g} dB"
    least = allowed.top1_agreement_limit
    if least is not None and final.top1_agreement is not None and final.top1_agreement < least:
        yield "top1_agreement", f"top-1 agreement {100 * final.top1_agreement:.1f} % is below {100 * least:g} %"
    most_kl, most_ratio = allowed.kl_divergence_nats_limit, allowed.perplexity_ratio_limit
    if most_kl is not None and final.kl_divergence_nats is not None and final.kl_divergence_nats > most_kl:
        yield "kl_divergence_nats", f"the mean KL divergence {final.kl_divergence_nats:.3g} nats is above {most_kl:g}"
    if most_ratio is not None and final.perplexity_ratio is not None and final.perplexity_ratio > most_ratio:
        what = f"the perplexity is {final.perplexity_ratio:.3f} times that of eager PyTorch"
        yield "perplexity_ratio", f"{what}, above {most_ratio:g}"
    rows = (*comparison.operators, *comparison.requantized)
    introducing = {row.operator.name: None for row in rows if row.verdict in OWN_ERROR}
    most = allowed.operators_introduced_limit
    if most is not None and len(introducing) > most:
        named = ", ".join(list(introducing)[:5])
        yield "operators_introduced", f"{len(introducing)} operators introduce error (allowed: {most}): {named}"


def _of_shares(comparison: Comparison, named: Mapping[str, str], allowed: Limits) -> Iterator[tuple[str, str]]:
    """Yield the shortfalls of outputs for which a share counts: of equal elements, or of rows with the same top-1."""
    limits: dict[str, tuple[str, float | None]] = {
        "equal": ("equal_elements", allowed.equal_elements_limit),
        "top1": ("top1_agreement", allowed.top1_agreement_limit),
    }
    for measure, (column, least) in limits.items():
        rows = [row for row in on_device(comparison) if row.status != "diverged" and headline(row, named) == measure]
        lowest = lowest_share(rows, equal_elements if measure == "equal" else rows_of_top1)
        if least is not None and lowest is not None and lowest < least:
            what = "share of equal elements" if measure == "equal" else "top-1 agreement of the rows"
            yield column, f"{what} {100 * lowest:.1f} % is below {100 * least:g} %"


def problem(row: OutputComparison) -> str | None:
    """Return why an output of the device has no finite SNR, although it does not equal a right output; else None."""
    elements = math.prod(row.shape)
    if elements and row.nonfinite_actual == elements:
        both = row.nonfinite_reference == elements
        return "all NaN or infinite" + (", in eager PyTorch as well" if both else "")
    if row.status not in ("compared", "exact", "diverged"):
        return row.status
    if row.status == "compared" and row.gap.snr_db is None and row.equal_elements is None:
        zeros = "all zeros in eager PyTorch" if row.gap.cosine is None else "no finite SNR"
        return zeros if row.gap.max_abs is None else f"{zeros}, up to {row.gap.max_abs:.3g} away on the device"
    return None


def _mean_snr(noise: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the SNR of the mean noise in dB, and the bounds of its interval. `noise`: noise-to-signal, per sample."""
    if not noise or math.inf in noise:
        return None, None, None
    interval = bootstrap_interval(noise)
    low, high = (None, None) if interval is None else (in_db(interval[1]), in_db(interval[0]))
    return in_db(fmean(noise)), low, high
