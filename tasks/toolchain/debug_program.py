"""The compilation of a debug program, which logs all operators of a method, or those of one part."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qnnsweep.tasks.records import DebugProgram, Operator, Span
from qnnsweep.tasks.records.debugged import Debugged, first_of_handles
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.compiler import Compiler
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.compile import Compiled, Unavailable, try_compile
from qnnsweep.tasks.toolchain.edge import EdgeModel
from qnnsweep.tasks.toolchain.profiling import instructions
from qnnsweep.tasks.toolchain.readback.facts import program_facts
from qnnsweep.tasks.toolchain.reference.operators import subgraphs
from qnnsweep.tasks.toolchain.requantized import requantized_tensors


def debug_program(model: EdgeModel, compiler: Compiler, kind: str, span: Span | None, store: Store) -> Debugged:
    """Compile the debug program of a method. Makes the edge program unusable.

    `span`: the operators that it logs; None for all.
    """
    model.program._etrecord = model.etrecord
    handles = None if span is None else _handles(model.operators, span)
    debug = try_compile(compiler, model.program, model.method, debug=compiler.has_debug_program, logged=handles)
    if isinstance(debug, Unavailable):
        return Debugged(program=DebugProgram(program=None, unavailable=debug.reason, span=span))
    program = store.put_bytes(debug.program.buffer)
    numbers = subgraphs(debug.graph)
    operators = [replace(row, subgraph=numbers.get(row.debug_handle or 0)) for row in model.operators]
    given = debug.log.requantized, operators, instructions(debug.program, model.method)
    return Debugged(
        program=DebugProgram(
            program=program,
            unavailable=None,
            span=span,
            facts=program_facts(program, backend_of(kind), store, model.method),
            buffer_bytes=debug.logged_bytes,
        ),
        expected_tensors=tuple(replace(tensor, span=span) for tensor in debug.dumped),
        requantized=tuple(replace(tensor, span=span) for tensor in requantized_tensors(*given)),
        etrecord=store.take_file(_etrecord(debug, model)),
    )


def _handles(operators: Sequence[Operator], span: Span) -> frozenset[int | None]:
    """Return the debug handles of a part. The inputs of the model, which have none, belong to the first part.

    The outputs of one call share a handle. It belongs to the part that has the call.
    """
    first = first_of_handles(operators) | {None: 0}
    return frozenset(handle for handle, index in first.items() if span.first <= index < span.end)


def _etrecord(debug: Compiled, model: EdgeModel) -> Path:
    """Write the program's ETRecord."""
    etrecord = debug.program.get_etrecord()
    first = model.chosen[0].sample if model.chosen else 0
    etrecord.update_representative_inputs(model.samples[first])  # ExecuTorch's Inspector reads one sample
    path = Path("etrecord.bin")
    etrecord.save(str(path))
    return path
