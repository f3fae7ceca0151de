"""What became of a cell: passed, out of tolerance, failed, impossible, or let down by the infrastructure; and why."""

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
    """All that a sweep knows of one planned cell: a record for every stage that it came through."""

    request: Request
    impossible: str | None = None
    code: str | None = None
    """Digest of the code and files behind the model; None when nobody asked."""
    exported: ExportedModel | None = None
    quantized: QuantizedModel | None = None
    lowered: LoweredProgram | None = None
    bundle: Bundle | None = None
    capture: Capture | None = None
    comparison: Comparison | None = None
    stage: str | None = None
    """The last stage that was begun; None when none was."""
    error: BaseException | None = None
    """Why that stage did not end well."""
    result_names: dict[str, str] = field(default_factory=dict[str, str])
    """A record's field to the name of the result that it is kept as."""


def judge(cell: CellResult) -> tuple[Outcome, str | None]:
    """The outcome, and the reason for it where it is not told by the cell's error."""
    if cell.impossible is not None:
        return "impossible", cell.impossible
    if cell.error is not None:
        return ("infrastructure" if isinstance(cell.error, _NOT_THE_CELL) else "failed"), None
    assert cell.comparison is not None, "a cell without an error came through"
    wrong = next((result for result in cell.comparison.io_checks if result.status == "failed"), None)
    if wrong is not None:
        why = f" ({wrong.detail})" if wrong.detail else ""
        return "failed", f"not comparable with the model: {wrong.mistake}{why}; the table `probe` has the evidence"
    shortfalls = list(_shortfalls(cell, cell.comparison))
    if shortfalls:
        return "out_of_tolerance", "; ".join(shortfalls)
    return "passed", "; ".join(_unavailable(cell)) or None


def _unavailable(cell: CellResult) -> Iterator[str]:
    """What was asked for besides the shipping program and could not be had."""
    lowered = cell.lowered
    if lowered is not None and lowered.debug_unavailable and cell.request.measure.dump_operators:
        yield f"no operators: {lowered.debug_unavailable}"
    if lowered is not None and lowered.profile is not None and lowered.profile.unavailable:
        yield f"no cycles: {lowered.profile.unavailable}"


def finals(comparison: Comparison) -> Finals:
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
    # The scores of random weights are too near each other for the largest to mean anything.
    trained = cell.exported is not None and cell.exported.weights != "random"
    if trained and least is not None and final.top1_agreement is not None and final.top1_agreement < least:
        yield f"top-1 agreement {100 * final.top1_agreement:.1f} % is below {100 * least:g} %"
    allowed = tolerance.introduced_operators
    introducing = {row.operator.name: None for row in comparison.operators if row.verdict == "introduced"}
    if allowed is not None and len(introducing) > allowed:
        yield f"{len(introducing)} operators introduce error, at most {allowed} may: {', '.join(list(introducing)[:5])}"


def _share(hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None
