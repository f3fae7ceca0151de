"""Which logged tensor is which operator's value, by debug handle and output index alone.

Never by shape, by place in the log or by a similar name: what cannot be told apart is `ambiguous`, and what the
lowering did not announce is reported as unexpected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tasks.records import ExpectedTensor, Operator
from tasks.records.vocabulary import OperatorStatus


class Logged(Protocol):
    """What alignment needs to know of a tensor in a device's log."""

    @property
    def run(self) -> int: ...
    @property
    def delegate_identifier(self) -> str | None: ...
    @property
    def instruction_id(self) -> int: ...
    @property
    def is_output(self) -> bool: ...
    @property
    def delegate_argument(self) -> bool: ...


EventT = TypeVar("EventT", bound=Logged)


@dataclass(frozen=True, kw_only=True, slots=True)
class Match(Generic[EventT]):
    """A logged tensor and what the lowering announced about it."""

    event: EventT
    dumped: ExpectedTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedOperator(Generic[EventT]):
    """One operator in one run. Either `reason` is None and `matches` is the one tensor to compare with, or `reason` is
    the status that says why there is none, and `matches` holds what was logged all the same."""

    operator: Operator
    run: int
    matches: tuple[Match[EventT], ...]
    reason: OperatorStatus | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment(Generic[EventT]):
    """A row for every operator in every run, run by run in the operators' order."""

    operators: tuple[AlignedOperator[EventT], ...]
    unexpected: tuple[str, ...]
    """Identifiers that were logged and not announced, each once, in the order of the log."""


def align(
    operators: Sequence[Operator],
    dumped: Sequence[ExpectedTensor],
    events: Sequence[EventT],
    *,
    runs: Sequence[int] | None = None,
) -> Alignment[EventT]:
    """Give every operator the tensor the device logged for it, or the reason why there is none.

    An event's identifier names an ExpectedTensor, whose debug handles and output index name a set of operators. The
    set's value is that of its last operator in graph order; the earlier ones are inside it, `superseded` unless a
    tensor names them alone. `events` are in the order of the log. `runs` defaults to those in which anything was
    logged.
    """
    announced: dict[str, list[ExpectedTensor]] = defaultdict(list)
    for tensor in dict.fromkeys(dumped):
        announced[tensor.identifier].append(tensor)
    claims, superseded = _claims(operators, announced)
    logged, contested = _by_identifier(events, announced)
    if runs is None:
        runs = sorted({event.run for event in events})

    def aligned(operator: Operator, run: int) -> AlignedOperator[EventT]:
        claimants = claims.get(operator.index, [])
        matches = tuple(
            Match(event=event, dumped=tensor)
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
        elif reason is None and (len(claimants) > 1 or len(announced[claimants[0].identifier]) > 1):
            reason = "ambiguous"
        elif reason is None and len(matches) > 1:
            reason = "repeated"
        return AlignedOperator(operator=operator, run=run, matches=matches, reason=reason)

    return Alignment(
        operators=tuple(aligned(operator, run) for run in runs for operator in operators),
        unexpected=tuple(dict.fromkeys(identifier for _, identifier in logged if identifier not in announced)),
    )


def _unmatchable(operator: Operator) -> OperatorStatus | None:
    """Why no logged tensor can be this operator's value, whatever was logged."""
    if operator.shape is None:
        return "tuple"
    if operator.constant:
        return "constant"
    if operator.unused:
        return "unused"
    return "no_handle" if operator.debug_handle is None else None


def _claims(
    operators: Sequence[Operator], announced: dict[str, list[ExpectedTensor]]
) -> tuple[dict[int, list[ExpectedTensor]], set[int]]:
    """The tensors that claim to be an operator's value, by operator index; and the operators that lie inside a set."""
    by_handle: dict[tuple[int, int], list[Operator]] = defaultdict(list)
    for operator in operators:
        if _unmatchable(operator) is None and operator.debug_handle is not None:
            by_handle[operator.debug_handle, operator.output_index].append(operator)
    claims: dict[int, list[ExpectedTensor]] = defaultdict(list)
    inside: set[int] = set()
    for members in by_handle.values():
        inside |= _all_but_last(members)
    for tensor in (tensor for tensors in announced.values() for tensor in tensors):
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
    events: Sequence[EventT], announced: dict[str, list[ExpectedTensor]]
) -> tuple[dict[tuple[int, str], list[EventT]], set[tuple[int, str]]]:
    """Events by run and identifier, and the identifiers whose events cannot be told apart.

    A delegate names its tensors itself. The runtime logs an instruction's tensors in the order of its parameters: a
    kernel's are its outputs, a delegate call's are its inputs, which nobody announces, and then its outputs. So
    the announced outputs `instruction:<id>:<position>` are the last ones, as long as the numbers agree.
    """
    logged: dict[tuple[int, str], list[EventT]] = defaultdict(list)
    contested: set[tuple[int, str]] = set()
    instructions: dict[tuple[int, int], list[EventT]] = {}
    outputs = _announced_outputs(announced)
    for event in events:
        if event.is_output:
            continue
        if event.delegate_identifier is not None:
            logged[event.run, event.delegate_identifier].append(event)
        else:
            instructions.setdefault((event.run, event.instruction_id), []).append(event)
    for (run, instruction), group in instructions.items():
        expected = outputs.get(instruction, 0)
        unannounced = len(group) - expected
        is_call = all(event.delegate_argument for event in group)
        if expected and (unannounced < 0 or (unannounced > 0 and not is_call)):
            contested |= {(run, f"instruction:{instruction}:{position}") for position in range(expected)}
            unannounced = 0
        for position, event in enumerate(group[unannounced:] if is_call else group):
            logged[run, f"instruction:{instruction}:{position}"].append(event)
    return logged, contested


def _announced_outputs(announced: Iterable[str]) -> dict[int, int]:
    """How many outputs each announced instruction has."""
    counts: dict[int, int] = defaultdict(int)
    for identifier in announced:
        kind, _, rest = identifier.partition(":")
        instruction, _, position = rest.partition(":")
        if kind == "instruction" and instruction.isdecimal() and position.isdecimal():
            counts[int(instruction)] = max(counts[int(instruction)], int(position) + 1)
    return counts
