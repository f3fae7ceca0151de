"""The conversions of values to other grids that a delegate inserted, in terms of the operator table."""

from collections.abc import Sequence
from dataclasses import dataclass

from qnnsweep.tasks.records import ExpectedTensor, Instruction, Operator, RequantizedTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Requantization:
    """A node that a delegate inserted into its own graph, to convert a value to another grid for some readers."""

    expected: ExpectedTensor
    target: str
    shape: tuple[int, ...]
    dtype: str
    source: str  # the name of the node whose value is converted
    source_handle: int | None  # None if this node is an input of the delegate's graph
    source_output: int  # which of the outputs of the node with this handle is converted
    reader_handles: tuple[int, ...]


def requantized_tensors(
    requantizations: Sequence[Requantization], operators: Sequence[Operator], instructions: Sequence[Instruction]
) -> tuple[RequantizedTensor, ...]:
    """Return a record per inserted node, in the order of the log.

    Readers and sources inside the delegate's graph are found by their debug handles. A source outside this graph is an
    input of the graph, which has the name of the operator whose value it is. `instructions`: of the program that logs.
    """
    values = {
        (row.debug_handle, row.output_index): row
        for row in reversed(operators)
        if row.debug_handle is not None and row.shape is not None
    }
    calls = {row.debug_handle: row for row in reversed(operators) if row.debug_handle is not None}
    names = {row.name: row for row in operators}
    delegate_calls = {
        handle: instruction.id
        for instruction in instructions
        if instruction.backend is not None
        for handle in instruction.debug_handles
    }
    tensors: list[RequantizedTensor] = []
    for number, node in enumerate(requantizations):
        handle = node.source_handle
        source = names.get(node.source) if handle is None else values.get((handle, node.source_output))
        readers = [calls[handle] for handle in node.reader_handles if handle in calls]
        tensors.append(
            RequantizedTensor(
                operator=_operator(len(operators) + number, node, source, readers),
                identifier=node.expected.identifier,
                instruction=next(
                    (delegate_calls[handle] for handle in node.reader_handles if handle in delegate_calls), None
                ),
                source=source.index if source else None,
                readers=tuple(reader.index for reader in readers),
            )
        )
    return tuple(tensors)


def _operator(index: int, node: Requantization, source: Operator | None, readers: Sequence[Operator]) -> Operator:
    """Return the conversion as a row of the operator table. It belongs to the source's module."""
    name = source.name if source else node.source
    purpose = f"requantized for {' and '.join(reader.name for reader in readers)}" if readers else "requantized"
    return Operator(
        index=index,
        name=f"{name} ({purpose})",
        target=node.target,
        debug_handle=None,
        output_index=0,
        source_nodes=source.source_nodes if source else (),
        module_path=source.module_path if source else "",
        stack_trace=source.stack_trace if source else "",
        shape=node.shape,
        dtype=node.dtype,
        quantization=node.expected.quantization,
        axis_order=node.expected.axis_order,
        subgraph=readers[0].subgraph if readers else None,
        constant=source is not None and source.constant,
        unused=False,
    )
