"""The outcome of an operator case, from the records of its stages or from their error."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qnnsweep.tasks.records import (
    CaseOutcome,
    Comparison,
    DelegationCount,
    LoweredProgram,
    OperatorCase,
    OperatorComparison,
)
from qnnsweep.tasks.records.program import ProgramCheck
from qnnsweep.tasks.records.vocabulary import CaseState, Verdict
from qnnsweep.tasks.results.outcome import finals, on_device, problem
from qnnsweep.tasks.toolchain.readback.audit import differences

_NO_OPERATORS = ("alloc", "getitem", "quantized_decomposed")
"""The beginnings of the names of nodes that no case is about: memory, the parts of a tuple, and the conversions of the
inputs and outputs of a quantized program."""


def described(case: OperatorCase, state: CaseState, why: str | None, stage: str | None = None) -> CaseOutcome:
    """Return the outcome of a case without a program."""
    return CaseOutcome(case=case.name, operator=case.operator, inputs=_inputs(case), state=state, why=why, stage=stage)


def of_skipped(case: OperatorCase) -> CaseOutcome:
    """Return the outcome of a case that the collection leaves out."""
    return described(case, "not_exported", case.skipped)


def not_tried(case: OperatorCase) -> CaseOutcome:
    """Return the outcome of a case for which the limit of new cases leaves no room."""
    return described(case, "not_tried", "limits.new_cases is reached; a later run tries the case")


def of_error(case: OperatorCase, stage: str, text: str, *, is_killed: bool) -> CaseOutcome:
    """Return the outcome of a case whose stage failed. `is_killed`: whether a signal or a deadline ended it."""
    if is_killed:
        return described(case, "aborted", text, stage)
    return described(case, "not_exported" if stage == "export" else "refused", text, stage)


def of_failed_run(
    case: OperatorCase, lowered: LoweredProgram, stage: str, text: str, *, is_killed: bool
) -> CaseOutcome:
    """Return the outcome of a case that has a program, but was not executed or not compared."""
    on_cpu = [*_on_cpu(lowered)]
    outcome = of_error(case, stage, "; ".join([text, *on_cpu]), is_killed=is_killed)
    outcome = _with_nodes(outcome, lowered)
    return replace(outcome, state="cpu") if on_cpu and not is_killed else outcome


def of_wrong_output(case: OperatorCase, lowered: LoweredProgram, text: str) -> CaseOutcome:
    """Return the outcome of a case whose program returns an output of another size than the model."""
    return _with_nodes(described(case, "wrong", text, "execute"), lowered)


def of_comparison(
    case: OperatorCase, lowered: LoweredProgram, checks: Sequence[ProgramCheck], comparison: Comparison
) -> CaseOutcome:
    """Return the outcome of a case that was executed."""
    compared = [row for row in comparison.operators if row.parts.introduced_equal is not None]
    worst = min(compared, key=_introduced_db, default=None)
    parts = worst.parts if worst else None
    final = finals(comparison)
    state, why = _state(lowered, checks, comparison)
    return replace(
        _with_nodes(described(case, state, why, "compare"), lowered),
        final_snr_db=final.final_snr_db,
        device_snr_db=final.device_snr_db,
        worst_operator=worst.operator.target if worst else None,
        introduced_snr_db=parts.introduced_snr_db if parts else None,
        introduced_steps=parts.introduced_steps if parts else None,
        introduced_p999_steps=parts.introduced_p999_steps if parts else None,
        introduced_equal=parts.introduced_equal if parts else None,
    )


def _with_nodes(outcome: CaseOutcome, lowered: LoweredProgram) -> CaseOutcome:
    """Return the outcome with the operators of the case's graph, and where they run."""
    counts = _counts(lowered)
    return replace(
        outcome,
        targets=tuple(dict.fromkeys(row.target for method in lowered.methods for row in method.operators)),
        cpu_targets=tuple(dict.fromkeys(count.operator for count in counts if count.not_delegated)),
        delegated_nodes=sum(count.delegated for count in counts),
        cpu_nodes=sum(count.not_delegated for count in counts),
    )


def _counts(lowered: LoweredProgram) -> list[DelegationCount]:
    rows = (count for method in lowered.methods for count in method.delegation)
    return [count for count in rows if not count.operator.startswith(_NO_OPERATORS)]


def _on_cpu(lowered: LoweredProgram) -> Iterator[str]:
    """Yield the operators that the compiler leaves to the CPU, with its first reason."""
    for count in _counts(lowered):
        if count.not_delegated:
            reason = f": {count.refusals[0]}" if count.refusals else ""
            yield f"{count.operator} stays on the CPU{reason}"


def _state(
    lowered: LoweredProgram, checks: Sequence[ProgramCheck], comparison: Comparison
) -> tuple[CaseState, str | None]:
    """Return the state of an executed case, and its reason."""
    notes = [*_notes(lowered, checks), *_verdicts(comparison, "biased")]
    changed = (method.graph_change for method in lowered.methods if method.graph_change)
    wrong = [*changed, *_wrong(comparison)]
    if wrong:
        return "wrong", "; ".join([*wrong, *notes])
    if on_cpu := [*_on_cpu(lowered)]:
        return "cpu", "; ".join([*on_cpu, *notes])
    exact = all(row.previous_status == "exact" for row in on_device(comparison))
    return "exact" if exact else "delegated", "; ".join(notes) or None


def _wrong(comparison: Comparison) -> Iterator[str]:
    """Yield what is wrong, by operator, and the outputs that are not finite."""
    yield from _verdicts(comparison, "introduced")
    for row in on_device(comparison):
        if (what := problem(row)) is not None:
            yield f"output {row.output}: {what}"
    if any(check.status == "failed" for check in comparison.io_checks):
        yield "the inputs or outputs are not those of the model"


def _verdicts(comparison: Comparison, verdict: Verdict) -> Iterator[str]:
    """Yield every operator with this verdict, and its error."""
    rows = (*comparison.operators, *comparison.requantized)
    for row in {row.operator.name: row for row in rows if row.verdict == verdict}.values():
        yield f"{row.operator.target} is {verdict}{_size(row)}"


def _size(row: OperatorComparison) -> str:
    parts = row.parts
    sizes = [
        f"{parts.introduced_snr_db:.1f} dB" if parts.introduced_snr_db is not None else "",
        f"up to {parts.introduced_steps:.3g} steps" if parts.introduced_steps is not None else "",
        f"{parts.introduced_differing} wrong elements" if parts.introduced_differing else "",
        f"gain {parts.introduced_gain:.4g}" if row.verdict == "biased" and parts.introduced_gain is not None else "",
    ]
    named = ", ".join(size for size in sizes if size)
    return f" ({named})" if named else ""


def _notes(lowered: LoweredProgram, checks: Sequence[ProgramCheck]) -> Iterator[str]:
    if (differing := differences(checks)) is not None:
        yield f"not the requested program: {differing}"
    for method in lowered.methods:
        if method.debug_unavailable:
            yield f"no operators: {method.debug_unavailable}"


def _introduced_db(row: OperatorComparison) -> float:
    value = row.parts.introduced_snr_db
    return float("inf") if value is None else value


def _inputs(case: OperatorCase) -> str:
    return ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in case.inputs)
