"""The sentence that says what a cell's accuracy is, what costs most of it, and which command to type next."""

import math
import shlex
from collections.abc import Iterator, Sequence

from qnnsweep.conf.names import AXES
from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import Precision
from qnnsweep.conf.syntax import key_of
from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.tasks.numerics.dead_parts import NO_DEPENDENCE
from qnnsweep.tasks.numerics.reported import reported_output, reported_worst_operator
from qnnsweep.tasks.records import Comparison, Cures, OutputComparison
from qnnsweep.tasks.records.cell_rows import Finals
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from qnnsweep.tasks.repair.cures import OF_USE_DB, Cure, cures, refused_changes, why_none
from qnnsweep.tasks.repair.wording import gain_in_words
from qnnsweep.tasks.results.atlas import rule_verdict, states_in_words
from qnnsweep.tasks.results.causes import causes, is_of_the_device, is_of_the_scheme
from qnnsweep.tasks.results.failure import first_line, without_operators
from qnnsweep.tasks.results.headline import with_snr
from qnnsweep.tasks.results.outcome import (
    CellResult,
    Judgement,
    another_scheme_can_help,
    failed_checks,
    graph_change,
    in_words,
    on_device,
    problem,
)
from qnnsweep.tasks.results.step_sentences import step_sentences

_MOST_GAIN_DB = 20.0
_LEAST_TARGET_DB = 10
_FAR_DB = 10.0
"""The device is not the cause if its error has a tenth of the whole error's energy, or less."""


def diagnosis(cell: CellResult, judged: Judgement) -> str:
    """Return one or two sentences about a cell. Causes are named by the modules of the user's model."""
    if cell.cases is not None and cell.error is None:
        return " ".join([f"{len(cell.cases)} cases: {', '.join(states_in_words(cell.cases))}.", *rule_verdict(cell)])
    if cell.comparison is None or judged.finals is None:
        words = judged.reason or (str(cell.error) if cell.error else "no result")
        return f"{judged.outcome} in {cell.stage}: {first_line(words)}" if cell.stage else first_line(words)
    if (changed := graph_change(cell)) is not None:
        worst = judged.finals.final_snr_db
        return f"{'' if worst is None else f'{worst:.1f} dB: '}{changed}."
    return " ".join([*_sentences(cell, cell.comparison, judged, judged.finals), *_next(cell, judged, judged.finals)])


def first_cure(cell: CellResult) -> Cure | None:
    """Return the change of the scheme that the cell's sentence names; None if it names none."""
    return _first(_cures(cell, _offered(cell)))


def _first(found: Sequence[Cure]) -> Cure | None:
    return next((cure for cure in found if cure.predicted_db >= OF_USE_DB), None)


def _tried(cell: CellResult) -> Cures | None:
    """Return the changes that were tried; None if there are none, or if no scheme makes the outputs right."""
    return cell.cures if another_scheme_can_help(cell) else None


def _offered(cell: CellResult) -> list[Candidate]:
    if cell.lowered is None or cell.comparison is None or _tried(cell) is None:
        return []
    return candidates(cell.comparison, cell.lowered, cell.request.scheme)


def _cures(cell: CellResult, offered: Sequence[Candidate]) -> list[Cure]:
    tried = _tried(cell)
    if cell.lowered is None or cell.comparison is None or tried is None:
        return []
    return cures(tried, offered, cell.comparison, cell.lowered)


def _next(cell: CellResult, judged: Judgement, measured: Finals) -> Iterator[str]:
    """Yield a sentence with the command that searches a better scheme, and the first change that was found to help.

    If none of those that were tried helps, the sentence says so. For an operator that the device computes wrongly, the
    command is then the one that shows its error.
    """
    request, offered = cell.request, _offered(cell)
    found = _cures(cell, offered)
    first, tried = _first(found), _tried(cell)
    if first is None:
        names = request.model.name, request.scheme.name, request.soc.name if request.soc else ""
        if _has_reproducer(cell):
            yield f"Next: `qnnsweep repro {shlex.quote('/'.join(names))}`."
        if tried is not None and tried.trials:
            yield why_none(len(tried.trials), refused_changes(tried, offered), found)
        elif cell.cures is not None and request.scheme.precision is not Precision.quantized:
            yield "No cure is tried for a float scheme."
        return
    words = _program_words(request)
    limit_db = judged.limits.final_snr_db_limit
    words.append(f"target.final_snr_db={repair_target_db(measured.final_snr_db, limit_db, first.predicted_db)}")
    gain, lowest, highest = map(gain_in_words, (first.predicted_db, first.lowest_db, first.highest_db))
    cure = f"{first.candidate.description}: {gain} dB predicted"
    cure += f", {lowest} to {highest} per sample" if lowest != highest else ""
    yield f"Next: `qnnsweep repair {' '.join(words)}` ({cure})."


def _program_words(request: Request) -> list[str]:
    """Return the overrides that make a cell's program again, for a shell: those of its names, then all others."""
    given = {key_of(word): word for word in request.program_words}
    # An experiment chooses the options that are not given, and can rename them.
    shown = {*given} if "experiment" in given else {"model", "scheme", "soc", *given}
    if request.toolchain.name != DEFAULT_TOOLCHAIN:
        shown.add("toolchain")
    names = [(axis, name) for axis, name in zip(AXES, request.names, strict=True) if axis in shown]
    words = [given.pop(axis, f"{axis}={name}") for axis, name in names if f"{axis}.name" not in given]
    return [*map(shlex.quote, [*words, *given.values()])]


def repair_target_db(final_snr_db: float | None, limit_db: float | None, gain_db: float) -> int:
    """Return a target for a repair, in whole dB: the lowest SNR and half of the predicted gain, at least the limit.

    Only half of the gain counts, and at most 20 dB, because the unseen samples of the certificate can have a lower SNR
    than the samples that the prediction is about.
    """
    limits = [math.ceil(limit_db)] if limit_db is not None and math.isfinite(limit_db) else []
    if final_snr_db is None or not math.isfinite(final_snr_db):
        return max(limits, default=_LEAST_TARGET_DB)
    half_db = math.floor(final_snr_db + min(gain_db / 2, _MOST_GAIN_DB))
    return max(half_db, math.floor(final_snr_db) + 1, *limits)


def _has_reproducer(cell: CellResult) -> bool:
    """Return whether the worst operator introduces an error of the device, which `qnnsweep repro` can show."""
    comparison, request = cell.comparison, cell.request
    if comparison is None or request.backend.kind != "qnn" or request.toolchain.name != DEFAULT_TOOLCHAIN:
        return False
    worst = reported_worst_operator(comparison)
    return worst is not None and worst.cause == "device" and worst.row.verdict == "introduced"


def _sentences(cell: CellResult, comparison: Comparison, judged: Judgement, measured: Finals) -> Iterator[str]:
    if wrong := failed_checks(comparison):
        words = in_words(wrong[0])
        yield f"{words[:1].upper()}{words[1:]}."
    compared = [row for row in on_device(comparison) if row.status != "diverged"]
    device = with_snr(compared, cell.request.tolerance.headline) or compared
    if not device:
        return
    worst = min(device, key=lambda row: math.inf if row.gap.snr_db is None else row.gap.snr_db)
    odd = next((row for row in compared if problem(row) is not None), None)
    if odd is not None:
        yield f"Output {odd.output} of {odd.sample_name}: {problem(odd)}{_of(causes(comparison, odd))}."
    elif measured.final_difference == "none":
        yield "The final outputs are those of eager PyTorch, bit by bit."
        if len({row.sample for row in compared}) > 1 and _are_constant(comparison):
            yield "In eager PyTorch, they are the same for all samples: they test nothing, look at weights and samples."
    elif measured.final_snr_db is None:
        yield "No output for which an SNR counts differs from eager PyTorch's."
    else:
        least = judged.limits.final_snr_db_limit
        limit = f" (limit {least:g})" if least is not None else ""
        yield f"{_worst(worst, device)} {measured.final_snr_db:.1f} dB{limit}{_of(causes(comparison, worst))}."
    if measured.equal_elements is not None and measured.equal_elements < 1:
        yield f"{100 * measured.equal_elements:.0f} % of the integers are those of eager PyTorch."
    if measured.device_snr_db is not None:
        final_db = -math.inf if measured.final_snr_db is None else measured.final_snr_db
        is_far = measured.device_snr_db >= final_db + _FAR_DB
        is_right = is_far and is_of_the_scheme(comparison, worst)
        yield f"{'Not the device' if is_right else 'Device against host'}: {measured.device_snr_db:.1f} dB."
    elif measured.device_difference == "none" and not is_of_the_device(comparison, worst):
        yield "The device computes the scheme exactly as the host does."
    yield from step_sentences(comparison.steps, reported_output(comparison))
    yield from _without_operators(comparison, cell)


def _are_constant(comparison: Comparison) -> bool:
    """Return whether no output could be checked for depending on the input, because eager PyTorch's does not."""
    checks = [check for check in comparison.io_checks if check.mistake.endswith(NO_DEPENDENCE)]
    return bool(checks) and all(check.status == "blind" for check in checks)


def _of(phrase: str | None) -> str:
    return f": {phrase}" if phrase else ""


def _worst(worst: OutputComparison, device: Sequence[OutputComparison]) -> str:
    """Return which output has the lowest SNR: the name of its sample and, among several outputs, its own."""
    names = [worst.sample_name] if len({row.sample for row in device}) > 1 else []
    names += [f"output {worst.output}"] if len({row.output_index for row in device}) > 1 else []
    return f"Worst sample ({', '.join(names)})" if names else "Output"


def _without_operators(comparison: Comparison, cell: CellResult) -> Iterator[str]:
    """Yield a sentence about the methods without logged operators, or about the whole program if all are without."""
    reasons = without_operators(cell.lowered, cell.capture)
    if not comparison.operators:
        why = "; ".join(dict.fromkeys(reasons.values()))
        yield f"Without operators, the causes are unknown{': ' + why if why else ''}."
        return
    for name, reason in reasons.items():
        yield f"Without the operators of {name}, the causes of its error are unknown: {reason}."
