"""The profile program, which logs times inside a delegate, and the edge nodes that each instruction computes."""

import copy
from dataclasses import replace

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

from qnnsweep.tasks.records import DelegatedNode, Instruction, ProfileProgram
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.compiler import Compiler
from qnnsweep.tasks.toolchain.compile import Unavailable, try_compile
from qnnsweep.tasks.toolchain.nodes import handle_of
from qnnsweep.tasks.toolchain.reference.operators import delegate_calls, kernel_calls, subgraphs


def profile_program(
    compiler: Compiler, edge: EdgeProgramManager, method: str, level: int, store: Store
) -> ProfileProgram | None:
    """Compile a copy of `edge` as a program whose delegate logs its operators' times. If `level` is 0, return None."""
    if level == 0:
        return None
    logging = compiler.profiling(level)
    if logging is None:
        compiled = Unavailable("this backend has no log of times that can be switched on")
    else:
        compiled = try_compile(logging, copy.deepcopy(edge), method, debug=False)
    if isinstance(compiled, Unavailable):
        return ProfileProgram(program=None, unavailable=compiled.reason, nodes=(), schematics=())
    numbers = subgraphs(compiled.graph)
    return ProfileProgram(
        program=store.put_bytes(compiled.program.buffer),
        unavailable=None,
        nodes=tuple(node for graph in compiled.log.built for node in _in_subgraph(graph, numbers)),
        schematics=tuple(store.put_bytes(schematic) for schematic in compiled.log.schematics),
    )


def instructions(program: ExecutorchProgramManager, method: str) -> tuple[Instruction, ...]:
    """Return a method's instructions sorted by id, each with the debug handles of the edge nodes that it computes."""
    rows: list[Instruction] = []
    for number, (node, module) in enumerate(delegate_calls(program.exported_program(method))):
        nodes = module.original_module.graph.nodes
        handles = dict.fromkeys(handle_of(inner) for inner in nodes if inner.op == "call_function")
        rows.append(
            Instruction(
                id=node.meta["debug_handle"],
                debug_handles=tuple(handle for handle in handles if handle is not None),
                backend=module.backend_id,
                subgraph=number,
            )
        )
    for node, handles in kernel_calls(program, method):
        rows.append(Instruction(id=node.meta["debug_handle"], debug_handles=handles, backend=None, subgraph=None))
    return tuple(sorted(rows, key=lambda row: row.id))


def _in_subgraph(graph: list[DelegatedNode], numbers: dict[int, int]) -> list[DelegatedNode]:
    """Return the nodes of one built graph, each with its `subgraph`, which is found by the node's debug handle."""
    candidates = {numbers[node.debug_handle] for node in graph if node.debug_handle in numbers}
    number = candidates.pop() if len(candidates) == 1 else None
    return [replace(node, subgraph=number) for node in graph]
