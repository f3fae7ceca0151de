"""The assignment of logged tensors to operators, decided only by debug handle and output index.

Shapes, positions in the log and similarities of names are not considered. Tensors that cannot be distinguished are
`ambiguous`, and tensors that the lowering did not expect are reported as unexpected.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qnnsweep.tasks.records import ExpectedTensor, Operator, RequantizedTensor
from qnnsweep.tasks.records.logs import LoggedTensor
from qnnsweep.tasks.records.vocabulary import OperatorStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A logged tensor and what the lowering expects of it."""

    event: LoggedTensor
    expected: ExpectedTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedOperator:
    """One operator in one run, with the tensors logged for it.

    If `reason` is None, `matches` has exactly one tensor, which can be compared. Otherwise, `reason` is the status that
    explains why no tensor can be compared, and `matches` has the tensors that were logged nevertheless.
    """

    operator: Operator
    run: int
    matches: tuple[Match, ...]
    reason: OperatorStatus | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """The result of `align`: one entry per run and operator, sorted by run and then in the order of the operators."""

    operators: tuple[AlignedOperator, ...]
    requantized: tuple[AlignedOperator, ...]
    """One entry per run and requantized tensor, sorted in the same way. Its operator is the conversion."""
    unexpected: tuple[str, ...]
    """Identifiers that were logged but not expected, each once, in the order of the log."""


def align(
    operators: Sequence[Operator],
    expected_tensors: Sequence[ExpectedTensor],
    events: Sequence[LoggedTensor],
    *,
    requantized: Sequence[RequantizedTensor] = (),
    runs: Sequence[int] | None = None,
) -> Alignment:
    """Assign to every operator the tensor that the device logged for it, or the reason why there is none.

    An event's identifier names an ExpectedTensor, whose debug handles and output index name a set of operators. The
    event's value is the value of the last of these operators in graph order. An earlier operator of the set is
    `superseded`, unless it is the last operator of another tensor's set. A requantized tensor is no operator's value.
    Its event is that of its delegate call with its identifier.

    `events`: in the order of the log. `runs`: by default the runs in which anything was logged.
    """
    expected: dict[str, list[ExpectedTensor]] = defaultdict(list)
    for tensor in dict.fromkeys(expected_tensors):
        expected[tensor.identifier].append(tensor)
    claims, superseded = _claims(operators, expected)
    logged, contested = _by_identifier(events, expected)
    if runs is None:
        runs = sorted({event.run for event in events})

    def align_operator(operator: Operator, run: int) -> AlignedOperator:
        claimants = claims.get(operator.index, [])
        matches = tuple(
            Match(event=event, expected=tensor)
            for tensor in claimants
            for event in logged.get((run, tensor.identifier), [])
        )
        reason: OperatorStatus | None = _unmatchable(operator)
        if reason is None and not claimants and operator.index in superseded:
            reason = "superseded"
        elif reason is None and any((run, tensor.identifier) in contested for tensor in claimants):
            reason = "ambiguous"
        elif reason is None and not matches:
            reason = "not_dumped"
        elif reason is None and (len(claimants) > 1 or len(expected[claimants[0].identifier]) > 1):
            reason = "ambiguous"
        elif reason is None and len(matches) > 1:
            reason = "repeated"
        elif reason is None and _has_bytes_of_int64(operator, matches):
            reason = "dtype_differs"
        return AlignedOperator(operator=operator, run=run, matches=matches, reason=reason)

    def align_requantized(tensor: RequantizedTensor, run: int) -> AlignedOperator:
        match = ExpectedTensor(
            identifier=tensor.identifier,
            debug_handles=(),
            output_index=0,
            quantization=tensor.operator.quantization,
            axis_order=tensor.operator.axis_order,
        )
        matches = tuple(
            Match(event=event, expected=match)
            for event in logged.get((run, tensor.identifier), [])
            if event.instruction_id == tensor.instruction
        )
        reason: OperatorStatus | None = None
        if tensor.operator.constant:
            reason = "constant"
        elif not matches:
            reason = "not_dumped"
        elif names[tensor.instruction, tensor.identifier] > 1:
            reason = "ambiguous"
        elif len(matches) > 1:
            reason = "repeated"
        return AlignedOperator(operator=tensor.operator, run=run, matches=matches, reason=reason)

    names = Counter((tensor.instruction, tensor.identifier) for tensor in requantized)
    return Alignment(
        operators=tuple(align_operator(operator, run) for run in runs for operator in operators),
        requantized=tuple(align_requantized(tensor, run) for run in runs for tensor in requantized),
        unexpected=tuple(dict.fromkeys(identifier for _, identifier in logged if identifier not in expected)),
    )


def _unmatchable(operator: Operator) -> OperatorStatus | None:
    """Return why no logged tensor can be this operator's value, whatever was logged; otherwise None."""
    if operator.shape is None:
        return "tuple"
    if operator.constant:
        return "constant"
    if operator.unused:
        return "unused"
    return "no_handle" if operator.debug_handle is None else None


def _has_bytes_of_int64(operator: Operator, matches: Iterable[Match]) -> bool:
    """Return whether the log has one byte per element of 64-bit integers: ExecuTorch cannot log QNN's type INT_64."""
    logged = (match.event.scalar_type for match in matches if match.expected.quantization is None)
    return operator.dtype == "int64" and "uint8" in logged


def _claims(
    operators: Sequence[Operator], expected: dict[str, list[ExpectedTensor]]
) -> tuple[dict[int, list[ExpectedTensor]], set[int]]:
    """Return the tensors that can be the value of each operator, and the operators that are not last in some set."""
    by_handle: dict[tuple[int, int], list[Operator]] = defaultdict(list)
    for operator in operators:
        if _unmatchable(operator) is None and operator.debug_handle is not None:
            by_handle[operator.debug_handle, operator.output_index].append(operator)
    claims: dict[int, list[ExpectedTensor]] = defaultdict(list)
    inside: set[int] = set()
    for members in by_handle.values():
        inside |= _all_but_last(members)
    for tensor in (tensor for tensors in expected.values() for tensor in tensors):
        keys = {(handle, tensor.output_index) for handle in tensor.debug_handles}
        members = [operator for key in keys for operator in by_handle.get(key, [])]
        if members:
            claims[max(member.index for member in members)].append(tensor)
            inside |= _all_but_last(members)
    return claims, inside


def _all_but_last(members: Iterable[Operator]) -> set[int]:
    indices = {member.index for member in members}
    return indices - {max(indices)}


def _by_identifier(
    events: Sequence[LoggedTensor], expected: dict[str, list[ExpectedTensor]]
) -> tuple[dict[tuple[int, str], list[LoggedTensor]], set[tuple[int, str]]]:
    """Return events by run and identifier, and the identifiers whose events cannot be distinguished.

    A delegate names its tensors itself. The runtime logs an instruction's tensors in the order of its parameters: for
    a kernel, the outputs; for a delegate call, the inputs and then the outputs. The outputs that are expected as
    `instruction:<id>:<position>` are therefore the last tensors. If there are fewer tensors than expected outputs, or
    if a kernel logged more tensors than expected outputs, the outputs cannot be distinguished.
    """
    logged: dict[tuple[int, str], list[LoggedTensor]] = defaultdict(list)
    contested: set[tuple[int, str]] = set()
    instructions: dict[tuple[int, int], list[LoggedTensor]] = {}
    output_counts = _expected_outputs(expected)
    for event in events:
        if event.is_output:
            continue
        if event.delegate_identifier is not None:
            logged[event.run, event.delegate_identifier].append(event)
        else:
            instructions.setdefault((event.run, event.instruction_id), []).append(event)
    for (run, instruction), group in instructions.items():
        outputs = output_counts.get(instruction, 0)
        inputs = len(group) - outputs
        is_call = all(event.delegate_argument for event in group)
        if outputs and (inputs < 0 or (inputs > 0 and not is_call)):
            contested |= {(run, f"instruction:{instruction}:{position}") for position in range(outputs)}
            inputs = 0
        for position, event in enumerate(group[inputs:] if is_call else group):
            logged[run, f"instruction:{instruction}:{position}"].append(event)
    return logged, contested


def _expected_outputs(identifiers: Iterable[str]) -> dict[int, int]:
    """Return the number of outputs of each expected instruction."""
    counts: dict[int, int] = defaultdict(int)
    for identifier in identifiers:
        kind, _, rest = identifier.partition(":")
        instruction, _, position = rest.partition(":")
        if kind == "instruction" and instruction.isdecimal() and position.isdecimal():
            counts[int(instruction)] = max(counts[int(instruction)], int(position) + 1)
    return counts
