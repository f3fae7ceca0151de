"""One calibration for all methods of a model with states.

The methods compute the same values from other numbers of tokens, and pass states to each other as floats. If their
grids differed, a state would be rounded again whenever another method reads it. Therefore a value has one observer in
all methods, and a state has one observer where it is written and where it is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from qnnsweep.tasks.records import StateLink


def share_observers(prepared: Mapping[str, GraphModule]) -> None:
    """Replace the observers of equal values of all methods by one observer. To be called before the calibration.

    Values are equal if they have the same name in two methods that call the same functions in the same order. Observers
    of another kind or another type stay as they are.
    """
    joined = _Joined()
    by_value: dict[tuple[str, str], nn.Module] = {}
    for graph in prepared.values():
        calls = _calls(graph)
        for observed, observer in _observers(graph):
            first = by_value.setdefault((calls, observed.name), observer)
            if _kind(first) == _kind(observer):
                joined.join(first, observer)
    for graph in prepared.values():
        for node in graph.graph.nodes:
            if _is_observer(node) and (shared := joined.of(graph.get_submodule(node.target))) is not None:
                setattr(graph, node.target, shared)


def equalize_states(prepared: Mapping[str, GraphModule], links: Sequence[StateLink]) -> None:
    """Give the observers of a state the union of their ranges. To be called after the calibration.

    ExecuTorch's quantizer gives the inputs of a concatenation the range of its result, except for those that are inputs
    of the program: it takes the module that checks the inputs for their observer. So the observers of a concatenation
    are also united here. Observers without a range keep what they have observed.
    """
    joined = _Joined()
    for graph in prepared.values():
        for _, observer in _observers(graph):
            for node in getattr(observer, "input_nodes", ()):
                for concatenated in filter(_is_observer, node.users):
                    joined.join(observer, node.graph.owning_module.get_submodule(concatenated.target))
    for link in links:
        written = _output(prepared[link.method], link.output)
        read = _input(prepared[link.to_method], link.input)
        if written is not None and read is not None:
            joined.join(written, read)
    for observers in joined.sets():
        ranges = [observer for observer in observers if _has_range(observer)]
        for name, combine in (("min_val", torch.minimum), ("max_val", torch.maximum)):
            values = [getattr(observer, name) for observer in ranges]
            for observer in ranges:
                setattr(observer, name, reduce(combine, values).clone())


class _Joined:
    """Sets of observers that become one. A set is named by its first observer."""

    def __init__(self) -> None:
        self._first: dict[nn.Module, nn.Module] = {}

    def of(self, observer: nn.Module) -> nn.Module | None:
        """Return the first observer of the set; None for an observer that is in no set."""
        first = self._first.get(observer)
        return first if first is None or first is observer else self.of(first)

    def join(self, observer: nn.Module, other: nn.Module) -> None:
        first, second = (self.of(item) or item for item in (observer, other))
        self._first.setdefault(first, first)
        self._first[second] = first

    def sets(self) -> list[list[nn.Module]]:
        """Return the observers of every set."""
        by_first: dict[nn.Module, list[nn.Module]] = {}
        for observer in self._first:
            by_first.setdefault(self.of(observer) or observer, []).append(observer)
        return list(by_first.values())


def _is_observer(node: Node) -> bool:
    """Return whether pt2e inserted the node. Another module of a graph checks the inputs of the program."""
    return node.op == "call_module" and str(node.target).startswith("activation_post_process")


def _has_range(observer: nn.Module) -> bool:
    """Return whether the least and the largest value alone determine the grid, and are known."""
    least = getattr(observer, "min_val", None)
    return isinstance(least, torch.Tensor) and least.numel() == 1 and not hasattr(observer, "histogram")


def _kind(observer: nn.Module) -> tuple[object, ...]:
    """Return what two observers must have in common so that one can take the place of the other."""
    names = ("dtype", "qscheme", "quant_min", "quant_max", "ch_axis", "scale", "zero_point")
    return type(observer), *(str(getattr(observer, name, None)) for name in names)


def _calls(graph: GraphModule) -> str:
    """Return the names and the functions of all calls, in order. Another number of tokens does not change them."""
    return " ".join(f"{node.name}={node.target}" for node in graph.graph.nodes if node.op == "call_function")


def _observers(graph: GraphModule) -> Iterator[tuple[Node, nn.Module]]:
    """Yield every observer of an input or a computed value with the node of the value."""
    for node in graph.graph.nodes:
        if _is_observer(node):
            observed = node.all_input_nodes[0]
            if observed.op in ("call_function", "placeholder"):
                yield observed, graph.get_submodule(str(node.target))


def _input(graph: GraphModule, index: int) -> nn.Module | None:
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    observers = [node for node in placeholders[index].users if _is_observer(node)]
    return graph.get_submodule(str(observers[0].target)) if observers else None


def _output(graph: GraphModule, index: int) -> nn.Module | None:
    node = graph.graph.output_node().all_input_nodes[index] if _is_flat(graph) else None
    return None if node is None or not _is_observer(node) else graph.get_submodule(str(node.target))


def _is_flat(graph: GraphModule) -> bool:
    """Return whether every output is another node, so that the nodes that the graph's end reads are the outputs."""
    returned: Any = graph.graph.output_node().args[0]
    return len(graph.graph.output_node().all_input_nodes) == len(returned)
