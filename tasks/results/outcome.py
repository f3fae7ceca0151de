"""The outcome of a cell and the reason for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from conf.schema import Request
from tasks.errors import DeviceError, EnvironmentUnusable, EvidenceError
from tasks.records import Bundle, Capture, Comparison, ExportedModel, LoweredProgram, OutputComparison, QuantizedModel
from tasks.records.cell_rows import Finals
from tasks.records.vocabulary import Outcome

_NOT_THE_CELL = (DeviceError, EnvironmentUnusable, EvidenceError)


@dataclass(kw_only=True, slots=True)
class CellResult:
    """A planned cell and the records of the stages that were completed for it."""

    request: Request
    impossible: str | None = None  # why the plan excludes the cell
    code: str | None = None  # digest of the model's code and files; None if no stage needed it
    exported: ExportedModel | None = None
    quantized: QuantizedModel | None = None
    lowered: LoweredProgram | None = None
    bundle: Bundle | None = None
    capture: Capture | None = None
    comparison: Comparison | None = None
    stage: str | None = None  # the last stage that was started; None if no stage was
    error: BaseException | None = None  # the error of the last stage
    result_names: dict[str, str] = field(default_factory=dict[str, str])  # names of the stored results, by field


def judge(cell: CellResult) -> tuple[Outcome, str | None]:
    """Return a cell's outcome and its reason. The reason is None if `cell.error` states it or if none is needed."""
    if cell.impossible is not None:
        return "impossible", cell.impossible
    if cell.error is not None:
        return ("infrastructure" if isinstance(cell.error, _NOT_THE_CELL) else "failed"), None
    assert cell.comparison is not None, "a cell without an error is complete"
    wrong = next((check for check in cell.comparison.io_checks if check.status == "failed"), None)
    if wrong is not None:
        detail = f" ({wrong.detail})" if wrong.detail else ""
        return "failed", f"not comparable with the model: {wrong.mistake}{detail}; the table `probe` has the evidence"
    if shortfalls := list(_shortfalls(cell, cell.comparison)):
        return "out_of_tolerance", "; ".join(shortfalls)
    return "passed", "; ".join(_unavailable(cell)) or None


def _unavailable(cell: CellResult) -> Iterator[str]:
    """Yield the reason for each program, debug or profile, that was requested but is missing."""
    lowered = cell.lowered
    if lowered is not None and lowered.debug_unavailable and cell.request.measure.dump_operators:
        yield f"no operators: {lowered.debug_unavailable}"
    if lowered is not None and lowered.profile is not None and lowered.profile.unavailable:
        yield f"no cycles: {lowered.profile.unavailable}"


def finals(comparison: Comparison) -> Finals:
    """Return the measures of the device's final outputs. The SNR is None if every output is exact or has no SNR."""
    device = on_device(comparison)
    ranked = [row for row in device if row.top1_reference is not None and row.top1_actual is not None]
    labelled = [row for row in ranked if row.label is not None]
    return Finals(
        final_snr_db=min((row.gap.snr_db for row in device if row.gap.snr_db is not None), default=None),
        final_cosine=min((row.gap.cosine for row in device if row.gap.cosine is not None), default=None),
        final_max_abs=max((row.gap.max_abs for row in device if row.gap.max_abs is not None), default=None),
        top1_agreement=_share([row.top1_actual == row.top1_reference for row in ranked]),
        accuracy=_share([row.top1_actual == row.label for row in labelled]),
        accuracy_eager=_share([row.top1_reference == row.label for row in labelled]),
    )


def on_device(comparison: Comparison) -> list[OutputComparison]:
    return [row for row in comparison.outputs if row.rung == "device"]


def _shortfalls(cell: CellResult, comparison: Comparison) -> Iterator[str]:
    final, tolerance, scheme = finals(comparison), cell.request.tolerance, cell.request.scheme.name
    for row in on_device(comparison):
        if row.status not in ("compared", "exact"):
            yield f"output {row.output} of {row.sample_name}: {row.status}"
            break
    least_db = tolerance.final_snr_db.get(scheme)
    if least_db is not None and final.final_snr_db is not None and final.final_snr_db < least_db:
        yield f"final SNR {final.final_snr_db:.1f} dB is below {least_db:g} dB"
    least = tolerance.top1_agreement.get(scheme)
    # With random weights the scores are so near each other that the index of the largest is arbitrary.
    trained = cell.exported is not None and cell.exported.weights != "random"
    if trained and least is not None and final.top1_agreement is not None and final.top1_agreement < least:
        yield f"top-1 agreement {100 * final.top1_agreement:.1f} % is below {100 * least:g} %"
    allowed = tolerance.introduced_operators
    rows = (*comparison.operators, *comparison.requantized)
    introducing = {row.operator.name: None for row in rows if row.verdict == "introduced"}
    if allowed is not None and len(introducing) > allowed:
        yield f"{len(introducing)} operators introduce error (allowed: {allowed}): {', '.join(list(introducing)[:5])}"


def _share(hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None
