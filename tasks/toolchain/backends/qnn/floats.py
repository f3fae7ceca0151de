"""Operators that compute in 16-bit float although the scheme is quantized.

They become graphs without quantized values. QNN also compiles a single graph with both kinds of operators, but then the
shipping program computes wrong results: docs/schemes.md has the measurement.
"""

import contextlib
from collections.abc import Callable, Iterator

from executorch.backends.qualcomm.utils.constants import QCOM_QUANT_ATTRS, QCOM_REQUANTIZE
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import generate_partitions_from_list_of_nodes
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import OperatorSupportBase

from qnnsweep.tasks.toolchain.backends.qnn.shared_constants import numbers

IsFloat = Callable[[Node], bool]


def partitions(module: GraphModule, support: OperatorSupportBase, is_float: IsFloat) -> list[Partition]:
    """Return the partitions of the graph, in graph order. No partition has float operators and others."""
    supported = {node for node in module.graph.nodes if support.is_node_supported({}, node)}
    made = numbers(module.graph)
    for node in reversed(module.graph.nodes):
        if node in made and supported.isdisjoint(node.users):  # a subgraph without an input cannot return it
            supported.discard(node)
    position = {node: number for number, node in enumerate(module.graph.nodes)}
    kinds = ({node for node in supported if is_float(node) is of_floats} for of_floats in (False, True))
    proposed = [
        part for kind in kinds for part in generate_partitions_from_list_of_nodes(module, op_support=_Only(kind))
    ]
    proposed.sort(key=lambda part: min(position[node] for node in part.nodes))
    for number, part in enumerate(proposed):
        part.id = number
    return proposed


def without_floats_grids(graph: Graph, is_float: IsFloat) -> None:
    """Remove the grids in a graph of float operators. The graphs around it round its inputs and its results."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if calls and all(map(is_float, calls)):
        for node in graph.nodes:
            node.meta.pop(QCOM_QUANT_ATTRS, None)
            node.meta.pop(QCOM_REQUANTIZE, None)


@contextlib.contextmanager
def without_grids(node: Node) -> Iterator[None]:
    """Let the node and the values that it reads be floats in this context."""
    grids = {
        value: value.meta.pop(QCOM_QUANT_ATTRS)
        for value in (node, *node.all_input_nodes)
        if QCOM_QUANT_ATTRS in value.meta
    }
    try:
        yield
    finally:
        for value, qparams in grids.items():
            value.meta[QCOM_QUANT_ATTRS] = qparams


class _Only(OperatorSupportBase):
    def __init__(self, nodes: set[Node]) -> None:
        self._nodes = nodes

    def is_node_supported(self, submodules: object, node: Node) -> bool:
        return node in self._nodes
