"""The sentence that says what a cell's accuracy is, what costs most of it, and how good the device itself is."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.numerics.ladder import worst_rung
from qnnsweep.tasks.numerics.verdict import wrong_integers
from qnnsweep.tasks.records import Comparison, ErrorShare, LoweredProgram, OperatorComparison, OutputComparison
from qnnsweep.tasks.records.cell_rows import Finals
from qnnsweep.tasks.records.vocabulary import Cause, Rung
from qnnsweep.tasks.repair.candidates import candidates
from qnnsweep.tasks.repair.wording import named_targets, operators_phrase
from qnnsweep.tasks.results.atlas import rule_verdict, states_in_words
from qnnsweep.tasks.results.outcome import CellResult, Judgement, graph_change, on_device, problem
from qnnsweep.tasks.results.step_sentences import step_sentences

_MENTIONED = 0.1  # a group of operators with a smaller share of the error is not mentioned
_MOST_GROUPS = 3
_COMPARABLE = 0.5  # an operator with at least this part of the largest operator's share is named too
_SPARSE = 0.05  # a value that uses a smaller part of its grid has a grid that is too wide for it
_WHAT: dict[Cause, str] = {
    "weights": "are the weights of {}",
    "clipping": "is clipping in {}",
    "resolution": "is the grid of {}",
    "device": "is what the device computes differently in {}",
}
_FROM: dict[Rung, str] = {
    "exported": "the export",
    "lowered": "the graph that the lowering makes of the model",
    "edge": "the rounding of weights",
    "designed": "the rounding of values to their grids",
    "device": "what the device computes differently",
}
"""Per rung, where the error comes from that the rung adds."""
_OF_SEVERAL: dict[Cause, str] = {**_WHAT, "resolution": "are the grids of {}"}


@dataclass(slots=True)
class _Group:
    """The operators of one type whose errors have the same cause, the largest share first."""

    cause: Cause
    target: str
    shares: list[ErrorShare] = field(default_factory=list["ErrorShare"])
    share: float = 0.0
    """The part of the error's energy. Errors cancel each other, so that the parts can add up to more than 1."""


def diagnosis(cell: CellResult, judged: Judgement) -> str:
    """Return one or two sentences about a cell. Causes are named by the modules of the user's model."""
    if cell.cases is not None and cell.error is None:
        return " ".join([f"{len(cell.cases)} cases: {', '.join(states_in_words(cell.cases))}.", *rule_verdict(cell)])
    if cell.comparison is None or judged.finals is None:
        words = judged.reason or (str(cell.error) if cell.error else "no result")
        return f"{judged.outcome} in {cell.stage}: {_first_line(words)}" if cell.stage else _first_line(words)
    if (changed := graph_change(cell)) is not None:
        worst = judged.finals.final_snr_db
        return f"{'' if worst is None else f'{worst:.1f} dB: '}{changed}."
    sentences = _sentences(cell.comparison, judged.finals, cell.lowered)
    return " ".join([*sentences, *_cure(cell.comparison, cell.lowered, cell.request.scheme)])


def _cure(comparison: Comparison, lowered: LoweredProgram | None, scheme: SchemeConfig) -> Iterator[str]:
    """Yield a sentence about the change of the scheme that `qnnsweep repair` would try first."""
    if lowered is None or lowered.methods[0].exported.method is not None:
        return  # the candidates are those of a program with one method
    first = next(iter(candidates(comparison, lowered, scheme)), None)
    if first is not None:
        yield f"The first cure to try is {first.description}: {first.predicted_db:+.1f} dB are predicted."


def _sentences(comparison: Comparison, measured: Finals, lowered: LoweredProgram | None) -> Iterator[str]:
    device = [row for row in on_device(comparison) if row.status != "diverged"]
    worst = min(device, key=lambda row: row.gap.snr_db if row.gap.snr_db is not None else float("inf"), default=None)
    if worst is None:
        return
    odd = next((row for row in device if problem(row) is not None), None)
    if odd is not None:
        yield f"Output {odd.output} of {odd.sample_name}: {problem(odd)}."
    elif measured.final_snr_db is None:
        yield "The final outputs are those of eager PyTorch, bit by bit."
    else:
        causes = "; ".join(_causes(comparison, worst.output_index))
        captured = {row.sample for row in comparison.operators}
        lowest = f"the lowest of {len(device)} outputs" if len(device) > 1 else ""
        if worst.sample in captured or not causes:
            of_outputs = f" ({lowest})" if lowest else ""
            yield f"{measured.final_snr_db:.1f} dB{of_outputs}{', of which ' if causes else ''}{causes}."
        else:
            known = [row for row in device if row.sample in captured and row.output_index == worst.output_index]
            of_sample = f'({lowest}, of sample "{worst.sample_name}")'
            yield f"{measured.final_snr_db:.1f} dB {of_sample}{_where(comparison, worst)}."
            yield f"Of the error of the {_captured_outputs(known)}, {causes}."
    if measured.device_snr_db is not None:
        yield f"Compared with the same program on the host, the device is at {measured.device_snr_db:.1f} dB."
    elif measured.device_difference == "none":
        yield "The device computes what the same program computes on the host, bit by bit."
    yield from step_sentences(comparison.steps)
    yield from _without_operators(comparison, lowered)


def _without_operators(comparison: Comparison, lowered: LoweredProgram | None) -> Iterator[str]:
    """Yield a sentence about the methods without a debug program, or about the whole program if all are without."""
    methods = lowered.methods if lowered else ()
    reasons = {method.exported.name: method.debug_unavailable for method in methods if method.debug_unavailable}
    if not comparison.operators:
        why = "; ".join(dict.fromkeys(reasons.values()))
        yield f"Without operators, the causes are unknown{': ' + why if why else ''}."
        return
    for name, reason in reasons.items():
        yield f"Without the operators of {name}, the causes of its error are unknown: {reason}."


def _where(comparison: Comparison, output: OutputComparison) -> str:
    """Return which rung adds most of an output's error. Unlike the causes, this is known without captured operators."""
    same = (output.sample, output.output_index)
    rung = worst_rung(row for row in comparison.outputs if (row.sample, row.output_index) == same)
    return f", most of it from {_FROM[rung]}" if rung else ""


def _captured_outputs(outputs: Sequence[OutputComparison]) -> str:
    known = [row.gap.snr_db for row in outputs if row.gap.snr_db is not None]
    at_least = f" ({min(known):.1f} dB or more)" if known else ""
    return f"{len(outputs)} output{'s' if len(outputs) > 1 else ''} with captured operators{at_least}"


def _causes(comparison: Comparison, output: int) -> Iterator[str]:
    shares = [share for share in comparison.budget if share.output_index == output and share.share is not None]
    totals = {share.cause: share.share or 0.0 for share in shares if share.operator is None}
    if not totals:
        return
    whole = sum(max(totals[cause], 0.0) for cause in totals if cause != "cross") or 1.0
    of_operators: dict[Cause, float] = defaultdict(float)
    for share in shares:
        of_operators[share.cause] += (share.share or 0.0) if share.operator else 0.0
    rows = {row.operator.name: row for row in reversed(comparison.operators)}
    targets = named_targets(row.operator for row in comparison.operators)
    groups: dict[tuple[Cause, str], _Group] = {}
    for share in shares:
        if share.operator is None:
            continue
        target = targets.get(share.operator, "input")
        group = groups.setdefault((share.cause, target), _Group(share.cause, target))
        group.shares.append(share)
        group.share += (share.share or 0.0) / (of_operators[share.cause] or 1.0) * totals[share.cause]
    largest = sorted(groups.values(), key=lambda group: -group.share)
    for group in [group for group in largest if group.share >= _MENTIONED * whole][:_MOST_GROUPS]:
        yield _described(group, rows)
    if totals["unexplained"] >= _MENTIONED * whole:
        wrong = wrong_integers(comparison.operators)
        modules = dict.fromkeys(row.operator.module_path or row.operator.name for row in wrong)
        why = next((share.why for share in shares if share.why), None)
        where = f", and the device computes wrong booleans or integers in {', '.join(modules)}" if wrong else ""
        yield f"{100 * totals['unexplained']:.0f} % are unexplained{f' ({why})' if why else ''}{where}"
    if abs(cross := totals["cross"]) >= _MENTIONED:
        yield f"{100 * cross:+.0f} % because errors {'add up' if cross > 0 else 'cancel each other'}"


def _described(group: _Group, rows: Mapping[str, OperatorComparison]) -> str:
    # The operators that make up almost all of the group's share.
    counted: list[ErrorShare] = []
    whole = sum(share.share or 0.0 for share in group.shares)
    for share in group.shares:
        if sum(other.share or 0.0 for other in counted) >= 0.99 * whole:
            break
        counted.append(share)
    words = _OF_SEVERAL if len(counted) > 1 else _WHAT
    modules = [share.module_path or share.operator or "" for share in counted]
    # The first operator stands for all others, unless the second has about the same share.
    named = 2 if len(counted) > 1 and (counted[1].share or 0.0) >= _COMPARABLE * (counted[0].share or 0.0) else 1
    what = words[group.cause].format(operators_phrase(group.target, modules, named=named))
    text = f"{100 * group.share:.0f} % {what}"
    why = _why(group.cause, [rows[share.operator] for share in counted if share.operator and share.operator in rows])
    return f"{text}{': ' + why if why else ''}"


def _why(cause: Cause, rows: Sequence[OperatorComparison]) -> str | None:
    """Return what is wrong with the grids of these operators; None if nothing is."""
    if cause == "clipping":
        clipped = sum(row.parts.clipped_elements or 0 for row in rows)
        return f"{clipped} elements are beyond the ends of the grid" if clipped else None
    if cause != "resolution":
        return None
    sparse = [row for row in rows if row.parts.range_used is not None and row.parts.range_used < _SPARSE]
    qparams = next((row.operator.quantization for row in sparse if row.operator.quantization), None)
    if qparams is None:
        return None
    step, zero_point = max(qparams.scale), qparams.zero_point[0]
    ends = ((qparams.quant_min - zero_point) * step, (qparams.quant_max - zero_point) * step)
    counts = sorted({row.parts.codes_used for row in sparse if row.parts.codes_used is not None})
    codes = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "few"
    return (
        f"the grid reaches to {max(ends, key=abs):g}, so its step is {step:.3g}, "
        f"and {codes} of {qparams.quant_max - qparams.quant_min + 1} values are used"
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
