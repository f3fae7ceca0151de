"""The program that looks at the time inside a delegate, and what the runtime's log numbers stand for."""

import copy
from typing import Any, cast

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir.debug_handle_utils import UNSET_DEBUG_HANDLE

from tasks.records import DelegatedNode, Instruction, ProfileProgram
from tasks.records.keys import METHOD
from tasks.storage.store import Store
from tasks.toolchain.backends.compiler import Compiler
from tasks.toolchain.compile import compile_edge
from tasks.toolchain.reference.operators import NO_KERNEL, delegate_calls, handle_of, subgraphs


def profile_program(compiler: Compiler, edge: EdgeProgramManager, level: int, store: Store) -> ProfileProgram | None:
    """Return the shipping program with its delegate's log of operators, from a copy of `edge`; None for level 0."""
    if level == 0:
        return None
    logging = compiler.profiling(level)
    if logging is None:
        return _unavailable("this backend has no log of its own to switch on")
    try:
        compiled = compile_edge(logging, copy.deepcopy(edge), debug=False)
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # As with the debug program: the shipping program is measured all the same.
        return _unavailable(f"{type(error).__name__}: {error}")
    taken = subgraphs(compiled.edge.exported_program())
    return ProfileProgram(
        program=store.put_bytes(compiled.program.buffer),
        unavailable=None,
        nodes=tuple(node for graph in compiled.log.built for node in _in_subgraph(graph, taken)),
        schematics=tuple(store.put_bytes(schematic) for schematic in compiled.log.schematics),
    )


def instructions(program: ExecutorchProgramManager) -> tuple[Instruction, ...]:
    """What each instruction id of a program stands for. The emitter put the id where a node's debug handle was."""
    # The annotation of `debug_handle_map` leaves out that it is kept per method.
    handles = cast(Any, program.debug_handle_map)[METHOD]
    lowered = program.exported_program()
    found: list[Instruction] = []
    for number, (node, module) in enumerate(delegate_calls(lowered)):
        inside = (handle_of(each) for each in module.original_module.graph.nodes if each.op == "call_function")
        own = tuple(dict.fromkeys(handle for handle in inside if handle is not None))
        found.append(
            Instruction(id=node.meta["debug_handle"], debug_handles=own, backend=module.backend_id, subgraph=number)
        )
    for node in lowered.graph.nodes:
        if node.op == "call_function" and node.target not in NO_KERNEL and "debug_handle" in node.meta:
            known = handles.get(node.meta["debug_handle"], UNSET_DEBUG_HANDLE)
            own = tuple(handle for handle in (known if isinstance(known, list) else [known]) if handle)
            found.append(Instruction(id=node.meta["debug_handle"], debug_handles=own, backend=None, subgraph=None))
    return tuple(sorted(found, key=lambda each: each.id))


def _in_subgraph(graph: list[DelegatedNode], taken: dict[int, int]) -> list[DelegatedNode]:
    """The nodes of one built graph with the number of the subgraph whose debug handles they carry."""
    numbers = {taken[node.debug_handle] for node in graph if node.debug_handle in taken}
    number = numbers.pop() if len(numbers) == 1 else None
    return [
        DelegatedNode(subgraph=number, name=node.name, debug_handle=node.debug_handle, users=node.users)
        for node in graph
    ]


def _unavailable(why: str) -> ProfileProgram:
    return ProfileProgram(program=None, unavailable=why, nodes=(), schematics=())
