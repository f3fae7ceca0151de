"""A compiled debug program with what the lowering knows of the tensors that it logs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qnnsweep.tasks.records.lowered import (
    DebugProgram,
    ExpectedTensor,
    LoweredMethod,
    Operator,
    RequantizedTensor,
    Unlogged,
)
from qnnsweep.tasks.records.stages import Blob


@dataclass(frozen=True, kw_only=True, slots=True)
class Debugged:
    """A debug program and the tensors that it logs."""

    program: DebugProgram
    expected_tensors: tuple[ExpectedTensor, ...] = ()
    requantized: tuple[RequantizedTensor, ...] = ()
    etrecord: Blob | None = None


def first_of_handles(operators: Sequence[Operator]) -> dict[int | None, int]:
    """Map each debug handle to the index of its first operator, which is the call if the call has several outputs."""
    return {row.debug_handle: row.index for row in reversed(operators)}


def part_of(method: LoweredMethod, debug: DebugProgram) -> Debugged:
    """Return one of a method's debug programs with what it logs."""
    return Debugged(
        program=debug,
        expected_tensors=method.expected_of(debug.span),
        requantized=tuple(tensor for tensor in method.requantized if tensor.span == debug.span),
        etrecord=method.etrecord,
    )


def joined(method: LoweredMethod, parts: Sequence[Debugged], unlogged: tuple[Unlogged, ...] = ()) -> LoweredMethod:
    """Return a method with its debug programs. The ETRecord is that of the first program.

    `unlogged`: the operators that no program logs.
    """
    requantized = [tensor for part in parts for tensor in part.requantized]
    return replace(
        method,
        debug_programs=tuple(part.program for part in parts),
        etrecord=next((part.etrecord for part in parts if part.etrecord is not None), None),
        expected_tensors=tuple(dict.fromkeys(tensor for part in parts for tensor in part.expected_tensors)),
        requantized=tuple(
            replace(tensor, operator=replace(tensor.operator, index=len(method.operators) + number))
            for number, tensor in enumerate(requantized)
        ),
        unlogged=unlogged,
    )
