"""The nodes of other graphs that each operator stands for. The values of those nodes are further references.

Nodes are matched by their ancestry (`from_node`, which every tracing and every pass extends), never by shape, position
or a similar name. If the ancestry is ambiguous, nothing is matched. Runs in a worker.

An example: the exported graph of a small classifier and its edge graph.

    position, exported node    index, edge call   from_node   value node       status
    0 conv2d                   0 convolution      conv2d      1 batch_norm     None: it has the node's value
    1 batch_norm               1 relu             relu        2 relu           None
    2 relu                     2 permute_copy     linear      4 linear         superseded: only call 3 reads it
    3 dropout                  3 addmm            linear      4 linear         None: it has the node's value
    4 linear

`convolution` stands for two nodes, because torchao folds a batch norm into the convolution before it; the last of these
nodes is the value node. `permute_copy` and `addmm` are the group of calls that `linear` became. Only `addmm` is read
from outside the group, so it has the value of `linear`. No operator stands for `dropout`, so this node is unclaimed.
"""

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_map_only

from qnnsweep.conf.names import OperatorReference
from qnnsweep.tasks.records import Counterpart, Operator, OtherReference
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.vocabulary import OperatorStatus
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.nodes import OBSERVER_REPLACEMENT, target_name
from qnnsweep.tasks.toolchain.reference.graph import NoKernel, ReferenceGraph, Value, graph_of
from qnnsweep.tasks.toolchain.reference.operators import operator_of
from qnnsweep.tasks.toolchain.tensors import put_tensors

QDQ_PREFIX = "quantized_decomposed."
# Operators that return their input, apart from rounding. A lowering may remove them without replacing them.
PASS_THROUGH_OPS = (
    *("aten._assert", "aten.alias", "aten.clone", "aten.contiguous", "aten.detach", "aten.dropout", "aten.expand"),
    "aten.to.",
    QDQ_PREFIX,
)
_BATCH_NORM = "aten.batch_norm.default"
_VIEW = "aten.view_copy.default"


def other_reference(
    name: OperatorReference,
    program: ExportedProgram,
    edge: ExportedProgram,
    operators: Sequence[Operator],
    samples: Mapping[int, tuple[torch.Tensor, ...]],
    store: Store,
) -> OtherReference:
    """Match `operators`, the operator table of `edge`, to nodes of `program`, and store the values of these nodes.

    `samples`: the inputs of the samples whose values are stored.
    """
    nodes, graph = _calls(program), graph_of(program)
    matcher = _NodeMatcher(nodes, _calls(edge))
    statuses: dict[int, OperatorStatus | None] = {
        row.index: matcher.statuses.get(row.index, "no_node") for row in operators
    }
    values: dict[str, torch.Tensor] = {}
    for sample, inputs in samples.items():
        node_values = _run(graph, inputs)
        for row in operators:
            if statuses[row.index] is not None:
                continue
            value = node_values.get(matcher.value_nodes[row.index])
            if isinstance(value, list | tuple):
                value = value[row.output_index]
            if not isinstance(value, torch.Tensor):
                statuses[row.index] = "no_value"
            elif tuple(value.shape) != row.shape:
                statuses[row.index] = "shape_differs"
            else:
                values[tensor_key(sample, row.index)] = value
    return OtherReference(
        name=name,
        values=put_tensors(store, values),
        counterparts=tuple(
            Counterpart(nodes=matcher.names(row.index), status=statuses[row.index]) for row in operators
        ),
        unclaimed=tuple(
            replace(operator_of(len(operators) + number, nodes[position]), target=target_name(nodes[position].target))
            for number, position in enumerate(matcher.unclaimed)
        ),
    )


def values_on(
    other: OtherReference, operators: Sequence[Operator], program: ExportedProgram, inputs: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return the values of another reference on one sample, by the indices of `operators`. `program`: its graph."""
    nodes = _calls(program)
    positions = {node.name: position for position, node in enumerate(nodes)}
    computed = _run(graph_of(program), inputs)
    values: dict[int, torch.Tensor] = {}
    for row, counterpart in zip(operators, other.counterparts, strict=True):
        value = computed.get(positions[counterpart.nodes[-1]]) if counterpart.status is None else None
        if isinstance(value, list | tuple):
            value = value[row.output_index]
        if isinstance(value, torch.Tensor) and tuple(value.shape) == row.shape:
            values[row.index] = value
    return values


class _NodeMatcher:
    """The match of the edge graph's calls to `nodes`: which nodes a call stands for, and which node's value it has."""

    def __init__(self, nodes: Sequence[Node], calls: Sequence[Node]) -> None:
        self._nodes, self._calls = nodes, calls
        self._indices = {call: index for index, call in enumerate(calls)}
        self._ancestors, self._possible_ancestors = _ancestors(nodes, calls)
        sets = (*self._ancestors.values(), *self._possible_ancestors.values())
        claimed = {position for positions in sets for position in positions}
        self._add_batch_norms(claimed)
        claimed_nodes = {nodes[position] for position in claimed}
        self.unclaimed = [
            position
            for position, node in enumerate(nodes)
            if position not in claimed and not (node.target is operator.getitem and node.args[0] in claimed_nodes)
        ]
        """The positions of the nodes that no operator stands for."""
        self.value_nodes = {index: max(positions) for index, positions in self._ancestors.items()}
        """Per call, the position of the last node that it stands for. The call may have the value of this node."""
        self.statuses: dict[int, OperatorStatus | None] = dict.fromkeys(self._possible_ancestors, "ambiguous")
        """Per call, None if the call has the value of its value node, else why that value is wrong or uncertain."""
        groups: dict[int, list[int]] = defaultdict(list)
        for index, position in self.value_nodes.items():
            groups[position].append(index)
        for position, group in groups.items():
            self.statuses |= self._group_statuses(nodes[position], group)

    def names(self, index: int) -> tuple[str, ...]:
        positions = self._ancestors.get(index) or self._possible_ancestors.get(index) or ()
        return tuple(self._nodes[position].name for position in sorted(positions))

    def _add_batch_norms(self, claimed: set[int]) -> None:
        """Add to each convolution the batch norm that torchao folded into it. `from_node` does not record the fold."""
        positions = {node: position for position, node in enumerate(self._nodes)}
        for ancestors in self._ancestors.values():
            last = self._nodes[max(ancestors)]
            readers = list(last.users)
            if len(readers) != 1 or not target_name(last.target).startswith("aten.conv"):
                continue
            if target_name(readers[0].target) == _BATCH_NORM and positions[readers[0]] not in claimed:
                ancestors.add(positions[readers[0]])
        claimed |= {position for ancestors in self._ancestors.values() for position in ancestors}

    def _group_statuses(self, node: Node, group: Sequence[int]) -> Mapping[int, OperatorStatus | None]:
        """Return the status of each call in `group`, which contains the calls that `node` became.

        The only call that is read from outside the group has the node's value. If this call is a view of another call
        in the group, because a backend needs another shape, the other call has the value too.
        """
        inside = {self._calls[index] for index in group}
        if isinstance(node.meta.get("val"), tuple | list):
            return self._tuple_statuses(node, group)
        leaving = [index for index in group if any(user not in inside for user in self._calls[index].users)]
        statuses: dict[int, OperatorStatus | None] = dict.fromkeys(group, "superseded")
        candidates = {self._skip_views(index, node, inside) for index in leaving}
        known = all(self._readers_are_known(index, inside) for index in leaving)
        certain = len(candidates) == 1 and known and not self._may_be_fused(node)
        for index in (*leaving, *candidates):
            statuses[index] = None if certain else "ambiguous"
        return statuses

    def _tuple_statuses(self, node: Node, group: Sequence[int]) -> Mapping[int, OperatorStatus | None]:
        """Return the status of each call in `group`, for a node whose value is a tuple.

        The getitem calls have the tuple's elements; the call that computes the tuple is superseded by them. If the
        group does not have exactly one such call, or if its tuple has another length, all calls are ambiguous.
        """
        getitems = [index for index in group if self._calls[index].target is operator.getitem]
        tuples = [self._calls[index].meta.get("val") for index in group if index not in getitems]
        if len(tuples) != 1 or not isinstance(tuples[0], tuple | list) or len(tuples[0]) != len(node.meta["val"]):
            return dict.fromkeys(group, "ambiguous")
        return {index: None if index in getitems else "superseded" for index in group}

    def _readers_are_known(self, index: int, inside: set[Node]) -> bool:
        """Return whether every call outside the group that reads the value at `index` has a known role.

        A call has a known role if it stands for another node, or if it only quantizes or dequantizes the value. Any
        other call might compute a part of the group's own node. `inside`: the calls of the group.
        """
        outside = [user for user in self._calls[index].users if user in self._indices and user not in inside]
        return all(
            self._indices[user] in self.value_nodes or target_name(user.target).startswith(QDQ_PREFIX)
            for user in outside
        )

    def _skip_views(self, index: int, node: Node, inside: set[Node]) -> int:
        """Return the index of the call with the node's shape: the call at `index`, or a call that it is a view of.

        Only calls in the group are tried. If none of them has the node's shape, return `index`.
        """
        call = self._calls[index]
        while _shape(call) != _shape(node) and target_name(call.target) == _VIEW and call.args[0] in inside:
            call = call.all_input_nodes[0]
        return self._indices[call] if _shape(call) == _shape(node) else index

    def _may_be_fused(self, node: Node) -> bool:
        """Return whether the call of this node may in fact compute the value of a later node, which was fused into it.

        That is possible if no call stands for the later node. Pass-through nodes between the two are skipped.
        """
        unclaimed = {self._nodes[position] for position in self.unclaimed}
        return any(
            not target_name(user.target).startswith(PASS_THROUGH_OPS) or self._may_be_fused(user)
            for user in node.users
            if user in unclaimed
        )


def _shape(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else None


def _ancestors(nodes: Sequence[Node], calls: Sequence[Node]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return the nodes that each call stands for, and the candidates for each call whose nodes are ambiguous.

    Some passes copy the metadata of an old node to a new node, but do not add the old node's name to the ancestry. The
    new call is then compared with the nodes that share ancestors with it. If there is one such node, the call stands
    for this node. If there are several, they are the candidates.
    """
    ids = _SourceIds()
    positions: dict[tuple[str, tuple[int, ...]], int] = {}
    descendants: dict[int, set[int]] = defaultdict(set)
    for position, node in enumerate(nodes):
        sources = node.meta.get("from_node", [])
        if sources:
            positions[node.name, ids.of_all(sources)] = position
        for source in _walk(sources):
            descendants[ids.of(source)].add(position)
    certain: dict[int, set[int]] = {}
    possible: dict[int, set[int]] = {}
    for index, call in enumerate(calls):
        ancestry = list(_walk(call.meta.get("from_node", [])))
        keys = [(source.name, ids.of_all(source.from_node)) for source in ancestry]
        exact = {positions[key] for key in keys if key in positions}
        siblings = {position for source in ancestry for position in descendants.get(ids.of(source), ())}
        if exact or len(siblings) == 1:
            certain[index] = exact or siblings
        elif siblings:
            possible[index] = siblings
    return certain, possible


class _SourceIds:
    """The numbers of the sources in `from_node`. Sources with equal name, `graph_id` and ancestry get the same number.

    `graph_id` is the address of a graph in the process that made the graph. Two graphs may have had the same address.
    Their sources are then distinguished by the ancestry.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self._by_address: dict[int, int] = {}

    def of(self, source: Any) -> int:
        if id(source) not in self._by_address:  # the nodes keep their sources alive
            key = (source.name, source.graph_id, self.of_all(source.from_node))
            self._by_address[id(source)] = self._ids.setdefault(key, len(self._ids))
        return self._by_address[id(source)]

    def of_all(self, sources: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.of(source) for source in sources)


def _walk(sources: Sequence[Any]) -> Iterator[Any]:
    for source in sources:
        yield source
        # A node that rounds the value of its ancestor does not stand for that ancestor.
        if source.pass_name != OBSERVER_REPLACEMENT:
            yield from _walk(source.from_node)


def _calls(program: ExportedProgram) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


def _run(graph: ReferenceGraph, inputs: Sequence[torch.Tensor]) -> dict[int, Value]:
    """Return a copy of every node's value, because a later node of an exported graph may write to the original.

    A node that the host cannot compute is left out, and so are all nodes that read it.
    """
    values: dict[int, Value] = {}
    copies: dict[int, Value] = {}
    arguments = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        for index, sources in enumerate(graph.sources):
            if all(source in values for source in sources):
                with suppress(NoKernel):
                    values[index] = graph.call(index, values, arguments)
                    copies[index] = tree_map_only(torch.Tensor, torch.clone, values[index])
    return copies
