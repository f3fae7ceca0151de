"""The weights of an edge graph: how many elements each has, with how many bits, and which operators read it."""

import math
from collections.abc import Sequence

from torch.export import ExportedProgram
from torch.fx import Node

from qnnsweep.tasks.records import Operator, Weight
from qnnsweep.tasks.toolchain.nodes import named_arguments, schema_name

_LAYERS = ("aten::conv", "aten::linear", "aten::embedding", "aten::mm", "aten::bmm", "aten::addmm", "aten::matmul")
_BITS_OF_A_BLOCK = 4  # a block's scale is a multiple of the channel's scale


def weights_of(edge: ExportedProgram, operators: Sequence[Operator]) -> tuple[Weight, ...]:
    """Return the weights of an edge graph, in the order in which operators read them first."""
    inputs = set(edge.graph_signature.user_inputs)
    indices = {operator.name: operator.index for operator in operators}
    readers: dict[Node, list[int]] = {}
    bits: dict[Node, float | None] = {}
    for node in edge.graph.nodes:
        if node.op != "call_function" or not schema_name(node).startswith(_LAYERS):
            continue
        for source in node.all_input_nodes:
            found = _constant_of(source)
            if found is None or found[0].name in inputs or len(found[0].meta["val"].shape) < 2:
                continue
            readers.setdefault(found[0], []).append(indices[node.name])
            bits[found[0]] = found[1]
    return tuple(
        Weight(readers=tuple(read_by), elements=node.meta["val"].numel(), element_bits=bits[node])
        for node, read_by in readers.items()
    )


def _constant_of(node: Node) -> tuple[Node, float | None] | None:
    """Return the placeholder from which alone a value is computed, and the bits of its elements; None if none is."""
    bits: float | None = None
    while node.op == "call_function" and node.all_input_nodes:
        if "::dequantize" in schema_name(node):
            bits = _element_bits(node)
        elif len(node.all_input_nodes) > 1:
            return None
        node = node.all_input_nodes[0]
    return (node, bits) if node.op == "placeholder" else None


def _element_bits(node: Node) -> float:
    """Return the bits of the elements that a node dequantizes, by the ends of their grid."""
    given = named_arguments(node)
    bits = float(math.ceil(math.log2(given["quant_max"] - given["quant_min"] + 1)))
    block = given.get("block_size")
    return bits if block is None else bits + _BITS_OF_A_BLOCK / math.prod(block)
