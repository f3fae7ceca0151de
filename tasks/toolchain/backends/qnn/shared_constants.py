"""Constants that several delegated subgraphs read, such as the zero points of a module that is called twice.

ExecuTorch copies a parameter for each subgraph, but not a call that depends on parameters alone, or on nothing. The
subgraph of the first reader would return its value, and another would receive it as an input, which the compiler does
not declare. So would an operator on the CPU, such as the comparison of `clamp(x, min=tensor)`.
"""

from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Graph, Node

from qnnsweep.tasks.toolchain.nodes import held_tensors


def shared_constants(program: ExportedProgram) -> list[Node]:
    """Return the calls that depend on no input of the model, in their order, if several calls read one of them."""
    changing, constants = {*program.graph_signature.buffers_to_mutate.values()}, dict[Node, None]()
    parameters = {name for name, held in held_tensors(program).items() if held not in changing}
    for node in program.graph.nodes:
        read = node.all_input_nodes
        if node.op == "call_function" and all(n in constants or n.name in parameters for n in read):
            constants[node] = None
    return [*constants] if any(len(node.users) > 1 for node in constants) else []


def separate(program: ExportedProgram, constants: Sequence[Node], partitions: Sequence[Any]) -> None:
    """Copy every call of `constants` for each further subgraph that reads it. `partitions`: the subgraphs.

    The operators on the CPU get a copy if the call is a number: see `numbers`. ExecuTorch itself gives them parameters.
    """
    part_of = {node: partition.id for partition in partitions for node in partition.nodes}
    for_cpu = numbers(program.graph)
    for node in reversed(constants):
        copies = dict[Any, Node]()
        for reader in list(node.users):
            part = part_of.get(reader)
            if part == part_of.get(node) or (part is None and node not in for_cpu):
                continue
            if part not in copies:
                with program.graph.inserting_after(node):
                    copies[part] = program.graph.node_copy(node)
                part_of[copies[part]] = part
            reader.replace_input_with(node, copies[part])
            if reader.op == "output":
                program.graph_signature.replace_all_uses(node.name, copies[part].name)
    program.graph_module.recompile()


def numbers(graph: Graph) -> set[Node]:
    """Return the calls that depend on nothing but their own arguments, such as `full` and what is computed from it."""
    found = set[Node]()
    for node in graph.nodes:
        if node.op == "call_function" and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found
