"""The in-place operations of an exported program: whose memory they change, and who reads that memory afterwards.

Before it is decomposed, an exported program has in-place operations and views, as the user's code has. A rewrite that
puts a copy between an operation and its argument, as the rounding of a value does, then loses what the operation
writes. It does no harm where every later reader takes the result of the operation itself.
"""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from qnnsweep.tasks.records.source_lines import line_in_words

_TRAINING = ("train", "training")
"""The names of arguments without which an operator neither draws random numbers nor changes its statistics."""
_PROBABILITIES = ("dropout_p",)


@dataclass(frozen=True, slots=True)
class Write:
    """An in-place operation, and the node whose memory it changes: a placeholder, or the operation that made it."""

    node: Node
    base: Node


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of a node's value, and the in-place operations whose result the value is or is a view of."""

    base: Node
    through: frozenset[Node] = frozenset()


def writes(graph: Graph) -> list[Write]:
    """Return the in-place operations of a graph."""
    return [write for write, _ in _writes(graph)]


def lost_writes(graph: Graph) -> tuple[str, ...]:
    """Return the lines of the in-place operations whose memory is read afterwards, but not through their results."""
    memories = _memories(graph)
    lines: dict[str, None] = {}
    for write, later in _writes(graph):
        readers = (source for node in later for source in node.all_input_nodes if node.users or node.op == "output")
        if any(_is_stale(memories.get(source), write) for source in readers):
            lines[where(write.node)] = None
    return tuple(lines)


def random_lines(graph: Graph) -> tuple[str, ...]:
    """Return the lines that draw random numbers."""
    return tuple(dict.fromkeys(where(node) for node in graph.nodes if is_random(node)))


def is_in_training(node: Node) -> bool:
    """Return whether an operator is called with `training=True`."""
    return any(_argument(node, name) is True for name in _TRAINING)


def where(node: Node) -> str:
    """Return the user's line of a node, or its name if the line is not known."""
    return line_in_words(node.meta.get("stack_trace") or "") or node.name


def written_memory(graph: Graph) -> set[Node]:
    """Return the nodes whose memory an in-place operation changes, before or after they are computed."""
    memories = _memories(graph)
    bases = {write.base for write in writes(graph)}
    return {node for node, memory in memories.items() if memory.base in bases}


def _is_stale(memory: _Memory | None, write: Write) -> bool:
    """Return whether a value shares the memory that was written, without being the result of the operation."""
    return memory is not None and memory.base is write.base and write.node not in memory.through


def _writes(graph: Graph) -> Iterator[tuple[Write, list[Node]]]:
    """Yield every in-place operation, and the nodes after it."""
    memories, nodes = _memories(graph), [*graph.nodes]
    for number, node in enumerate(nodes):
        for argument in _written(node):
            yield Write(node, memories[argument].base), nodes[number + 1 :]


def _memories(graph: Graph) -> Mapping[Node, _Memory]:
    memories: dict[Node, _Memory] = {}
    for node in graph.nodes:
        source = shares_memory(node)
        if source is None or source not in memories:
            memories[node] = _Memory(node)
            continue
        memory, is_write = memories[source], source in _written(node)
        memories[node] = _Memory(memory.base, memory.through | {node}) if is_write else memory
    return memories


def shares_memory(node: Node) -> Node | None:
    """Return the argument whose memory the node's value shares; None if the node makes a value of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return node.all_input_nodes[0] if node.all_input_nodes else None
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    shared = {name for returned in schema.returns if returned.alias_info for name in returned.alias_info.before_set}
    for argument in schema.arguments:
        value = _argument(node, argument.name)
        if argument.alias_info and shared.intersection(argument.alias_info.before_set) and isinstance(value, Node):
            return value
    # Operators such as dropout return their input itself where they have nothing to do.
    may_alias = torch.Tag.maybe_aliasing_or_mutating in getattr(node.target, "tags", ())
    return node.all_input_nodes[0] if may_alias and node.all_input_nodes else None


def _written(node: Node) -> list[Node]:
    """Return the arguments that a node changes in place."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    names = (
        [entry.name for entry in schema.arguments if entry.alias_info and entry.alias_info.is_write] if schema else []
    )
    return [value for name in names if isinstance(value := _argument(node, name), Node)]


def _argument(node: Node, name: str) -> Any:
    """Return the value of an operator's argument; None if it is left out or if the operator has no such argument."""
    schema: Any = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema else []
    values = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return values.get(name)


def is_random(node: Node) -> bool:
    """Return whether an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    schema: Any = getattr(node.target, "_schema", None)
    names = {argument.name for argument in schema.arguments}
    needs_training = names.intersection(_TRAINING)
    needs_probability = names.intersection(_PROBABILITIES)
    return (not needs_training or is_in_training(node)) and (
        not needs_probability or any(_argument(node, name) for name in needs_probability)
    )
