"""The checks of the states of a program: a state must have one grid where it is written and where it is read."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qnnsweep.tasks.records import GraphTensor, LoweredMethod, LoweredProgram, ProgramCheck, Span, StateLink

_NO_DEBUG_PROGRAM = "only a debug program names the grids of its values"
_NOT_LISTED = "the debug program's context does not list the state"


def state_checks(lowered: LoweredProgram) -> tuple[ProgramCheck, ...]:
    """Return one check per link of the states whose value is quantized: the grid of the input, and of the output.

    Both grids are read from the bytes of the debug programs.
    """
    driven = lowered.model.driven
    by_name = {method.exported.name: method for method in lowered.methods}
    return tuple(_checks(driven.plan.links, by_name)) if driven is not None else ()


def _checks(links: Sequence[StateLink], methods: Mapping[str, LoweredMethod]) -> Iterator[ProgramCheck]:
    for link in links:
        writer, reader = methods[link.method], methods[link.to_method]
        read, written = reader.input_qparams[link.input], writer.output_grid(link.output)
        if read is None and written is None:
            continue
        spec = reader.exported.inputs[link.input]
        asked = "no grid" if read is None else _grid(read.scale[0], read.zero_point[0])
        got = _written(writer, link.output)
        in_reader = {_grid(tensor.scale, tensor.zero_point) for _, tensor in _tensors(reader)}
        missing = _NO_DEBUG_PROGRAM if writer.debug_facts is None else _NOT_LISTED
        yield ProgramCheck(
            method=writer.exported.method,
            program="debug",
            subgraph=None,
            check="grid of a state",
            subject=f"{writer.exported.outputs[link.output].name} as {spec.name} of {link.to_method}",
            asked=asked,
            got=got,
            status="unread" if got is None else "met" if got == asked and asked in in_reader else "differs",
            reason=missing if got is None else None,
        )


def _written(method: LoweredMethod, output: int) -> str | None:
    """Return the compiled grid of the operator that computes an output."""
    index = method.output_operators[output]
    handle = None if index is None else method.operators[index].debug_handle
    names = {(row.span, row.identifier) for row in method.expected_tensors if handle in row.debug_handles}
    written = (tensor for span, tensor in _tensors(method) if (span, tensor.name) in names)
    return next((_grid(tensor.scale, tensor.zero_point) for tensor in written), None)


def _tensors(method: LoweredMethod) -> Iterator[tuple[Span | None, GraphTensor]]:
    """Yield the quantized tensors that the contexts of the debug programs list, with the program's span."""
    for debug in method.debug_programs:
        for delegate in debug.facts.delegates if debug.facts is not None else ():
            for tensor in delegate.context.tensors if delegate.context else ():
                if tensor.scale is not None:
                    yield debug.span, tensor


def _grid(scale: float | None, zero_point: int | None) -> str:
    """Return a grid in words. The scale is rounded to float32, as QNN stores it."""
    return f"scale {float(np.float32(scale or 0.0)):.6g} zero point {zero_point}"
