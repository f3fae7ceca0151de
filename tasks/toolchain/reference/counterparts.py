"""Other graphs as the operators' reference: which of their nodes an operator stands for, and those nodes' values.

Nodes are linked by their ancestry (`from_node`, which every tracing and every pass prolongs), never by shape, position
or a similar name. What the ancestry leaves open stays open. Runs in a worker.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_map_only

from conf.names import OperatorReference
from tasks.records import Counterpart, Operator, OtherReference
from tasks.records.vocabulary import OperatorStatus
from tasks.storage.store import Store
from tasks.toolchain.reference.graph import NoKernel, ReferenceGraph, Value, graph_of, target_name
from tasks.toolchain.reference.operators import operator_of
from tasks.toolchain.tensors import put_tensors

# Behind this pass of torchao's lies the node whose value a new node rounds; the new one does not stand for it.
_QUANTIZER = "replace_observer_with_quantize_dequantize_node"
_ROUNDS = "quantized_decomposed."
# They give on what they get, but for its rounding: a lowering may drop them, and no operator has to take their place.
_GIVES_ON = (
    *("aten._assert", "aten.alias", "aten.clone", "aten.contiguous", "aten.detach", "aten.dropout", "aten.expand"),
    "aten.to.",
    _ROUNDS,
)
_BATCH_NORM = "aten.batch_norm.default"
_VIEW = "aten.view_copy.default"


def other_reference(
    name: OperatorReference,
    program: ExportedProgram,
    edge: ExportedProgram,
    operators: Sequence[Operator],
    samples: Sequence[tuple[torch.Tensor, ...]],
    store: Store,
) -> OtherReference:
    """What each of `operators`, the table of `edge`, stands for in `program`, and that node's value for each sample."""
    nodes, graph = _calls(program), graph_of(program)
    links = _Links(nodes, _calls(edge))
    statuses: dict[int, OperatorStatus | None] = {
        row.index: links.statuses.get(row.index, "no_node") for row in operators
    }
    values: dict[str, torch.Tensor] = {}
    for sample, inputs in enumerate(samples):
        computed = _run(graph, inputs)
        for row in operators:
            if statuses[row.index] is not None:
                continue
            value = computed.get(links.homes[row.index])
            if isinstance(value, list | tuple):
                value = value[row.output_index]
            if not isinstance(value, torch.Tensor):
                statuses[row.index] = "no_value"
            elif tuple(value.shape) != row.shape:
                statuses[row.index] = "shape_differs"
            else:
                values[f"{sample}/{row.index}"] = value
    return OtherReference(
        name=name,
        values=put_tensors(store, values),
        counterparts=tuple(Counterpart(nodes=links.names(row.index), status=statuses[row.index]) for row in operators),
        unclaimed=tuple(
            replace(operator_of(len(operators) + number, nodes[at]), target=target_name(nodes[at].target))
            for number, at in enumerate(links.unclaimed)
        ),
    )


class _Links:
    """Positions in `nodes` that each call of the edge graph stands for, and which call has a node's value."""

    def __init__(self, nodes: Sequence[Node], calls: Sequence[Node]) -> None:
        self._nodes, self._calls = nodes, calls
        self._numbers = {call: number for number, call in enumerate(calls)}
        self._sets, self._unsure = _ancestors(nodes, calls)
        claimed = {position for each in (*self._sets.values(), *self._unsure.values()) for position in each}
        self._add_batch_norms(claimed)
        taken = {nodes[position] for position in claimed}
        self.unclaimed = [
            position
            for position, node in enumerate(nodes)
            if position not in claimed and not (node.target is operator.getitem and node.args[0] in taken)
        ]
        """Nodes that no operator stands for."""
        self.homes = {index: max(positions) for index, positions in self._sets.items()}
        """For each call the last node of its set, whose value it may have."""
        self.statuses: dict[int, OperatorStatus | None] = dict.fromkeys(self._unsure, "ambiguous")
        """None for the one call that has its node's value."""
        became: dict[int, list[int]] = defaultdict(list)
        for index, home in self.homes.items():
            became[home].append(index)
        for home, group in became.items():
            self.statuses |= self._settled(home, group)

    def names(self, index: int) -> tuple[str, ...]:
        positions = self._sets.get(index) or self._unsure.get(index) or ()
        return tuple(self._nodes[position].name for position in sorted(positions))

    def _add_batch_norms(self, claimed: set[int]) -> None:
        """torchao folds a batch norm into the convolution that it alone reads, and notes it nowhere."""
        positions = {node: position for position, node in enumerate(self._nodes)}
        for each in self._sets.values():
            last = self._nodes[max(each)]
            readers = list(last.users)
            if len(readers) != 1 or not target_name(last.target).startswith("aten.conv"):
                continue
            if target_name(readers[0].target) == _BATCH_NORM and positions[readers[0]] not in claimed:
                each.add(positions[readers[0]])
        claimed |= {position for each in self._sets.values() for position in each}

    def _settled(self, home: int, group: Sequence[int]) -> Mapping[int, OperatorStatus | None]:
        """Of the calls that one node became, that one has its value which alone is read from outside, by itself or by
        what is a mere view of it: a backend may want another shape."""
        inside = {self._calls[index] for index in group}
        if isinstance(self._nodes[home].meta.get("val"), tuple | list):
            return self._taken_apart(self._nodes[home], group)
        leaving = [index for index in group if any(user not in inside for user in self._calls[index].users)]
        found: dict[int, OperatorStatus | None] = dict.fromkeys(group, "superseded")
        viewed = {self._unviewed(index, self._nodes[home], inside) for index in leaving}
        ends = all(self._ends(index, inside) for index in leaving)
        sure = len(viewed) == 1 and ends and not self._swallowed(self._nodes[home])
        for index in (*leaving, *viewed):
            found[index] = None if sure else "ambiguous"
        return found

    def _taken_apart(self, node: Node, group: Sequence[int]) -> Mapping[int, OperatorStatus | None]:
        """A node whose value is a tuple: its elements are those of the one call that it became, if it became one."""
        parts = [index for index in group if self._calls[index].target is operator.getitem]
        whole = [self._calls[index].meta.get("val") for index in group if index not in parts]
        if len(whole) != 1 or not isinstance(whole[0], tuple | list) or len(whole[0]) != len(node.meta["val"]):
            return dict.fromkeys(group, "ambiguous")
        return {index: None if index in parts else "superseded" for index in group}

    def _ends(self, index: int, inside: set[Node]) -> bool:
        """Whether all that reads the call has a place of its own: what has none might be a part of the same node."""
        outside = [user for user in self._calls[index].users if user in self._numbers and user not in inside]
        return all(
            self._numbers[user] in self.homes or target_name(user.target).startswith(_ROUNDS) for user in outside
        )

    def _unviewed(self, index: int, node: Node, inside: set[Node]) -> int:
        """The call, or the one in the node's own shape that it is a view of."""
        call = self._calls[index]
        while _shape(call) != _shape(node) and target_name(call.target) == _VIEW and call.args[0] in inside:
            call = call.all_input_nodes[0]
        return self._numbers[call] if _shape(call) == _shape(node) else index

    def _swallowed(self, node: Node) -> bool:
        """Whether a reader of the node is gone, perhaps into the very operator."""
        gone = {self._nodes[position] for position in self.unclaimed}
        waiting = list(node.users)
        while waiting:
            user = waiting.pop()
            if user in gone and target_name(user.target).startswith(_GIVES_ON):
                waiting.extend(user.users)
            elif user in gone:
                return True
        return False


def _shape(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else None


def _ancestors(nodes: Sequence[Node], calls: Sequence[Node]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each call the nodes it descends from; and for one that names none of them, those it may descend from.

    A pass that makes a node of another one and copies what that knew leaves out its name: such a call shares its
    parents with one node, and then stands for it, or with several.
    """
    lines = _Lines()
    named: dict[tuple[str, tuple[int, ...]], int] = {}
    children: dict[int, set[int]] = defaultdict(set)
    for position, node in enumerate(nodes):
        sources = node.meta.get("from_node", [])
        if sources:
            named[node.name, lines.numbers(sources)] = position
        for source in _walk(sources):
            children[lines.number(source)].add(position)
    sure: dict[int, set[int]] = {}
    unsure: dict[int, set[int]] = {}
    for index, call in enumerate(calls):
        line = list(_walk(call.meta.get("from_node", [])))
        keys = [(source.name, lines.numbers(source.from_node)) for source in line]
        exact = {named[key] for key in keys if key in named}
        related = {position for source in line for position in children.get(lines.number(source), ())}
        if exact or len(related) == 1:
            sure[index] = exact or related
        elif related:
            unsure[index] = related
    return sure, unsure


class _Lines:
    """A number for every source: the same for those of one name, graph and ancestry.

    A graph is known by its address in the process that made it; the ancestry tells apart what had the same one.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self._known: dict[int, int] = {}

    def number(self, source: Any) -> int:
        if id(source) not in self._known:  # the nodes hold on to their sources
            told = (source.name, source.graph_id, self.numbers(source.from_node))
            self._known[id(source)] = self._numbers.setdefault(told, len(self._numbers))
        return self._known[id(source)]

    def numbers(self, sources: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.number(source) for source in sources)


def _walk(sources: Sequence[Any]) -> Iterator[Any]:
    for source in sources:
        yield source
        if source.pass_name != _QUANTIZER:
            yield from _walk(source.from_node)


def _calls(program: ExportedProgram) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


def _run(graph: ReferenceGraph, inputs: Sequence[torch.Tensor]) -> dict[int, Value]:
    """Every node's value as it was when it was made: an exported graph may still write to it. What the host cannot
    make is left out, with all that reads it."""
    values: dict[int, Value] = {}
    kept: dict[int, Value] = {}
    given = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        for index, sources in enumerate(graph.sources):
            if any(source not in values for source in sources):
                continue
            try:
                value = values[index] = graph.call(index, values, given)
            except NoKernel:
                continue
            kept[index] = tree_map_only(torch.Tensor, torch.clone, value)
    return kept
