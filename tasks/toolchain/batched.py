"""Convolutions without a batch dimension, which PyTorch accepts and a quantizer's weights do not fit."""

from typing import cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from qnnsweep.tasks.toolchain.nodes import CONVOLUTIONS


def add_batches(program: ExportedProgram) -> None:
    """Give each convolution that reads a value without a batch dimension a batch of one, in place."""
    graph, unbatched = program.graph, [node for node in program.graph.nodes if _is_unbatched(node)]
    for node in unbatched:
        with graph.inserting_before(node):
            batch = _called(node, torch.ops.aten.unsqueeze.default, cast(Node, node.args[0]))
        node.args = (batch, *node.args[1:])
        single, node.meta["val"] = node.meta["val"], node.meta["val"].unsqueeze(0)
        with graph.inserting_after(node):
            result = _called(node, torch.ops.aten.squeeze.dim, node)
        result.meta["val"] = single
        node.replace_all_uses_with(result, delete_user_cb=lambda user, result=result: user is not result)
        program.graph_signature.replace_all_uses(node.name, result.name)
    if unbatched:
        program.graph_module.recompile()


def _is_unbatched(node: Node) -> bool:
    if node.target not in CONVOLUTIONS:
        return False
    read, weight = (cast(Node, node.args[position]).meta["val"] for position in (0, 1))
    return read.dim() == weight.dim() - 1


def _called(convolution: Node, target: torch._ops.OpOverload, value: Node) -> Node:
    """Insert the call of a view of the first dimension, at the line of the convolution."""
    node = convolution.graph.call_function(target, (value, 0))
    origin = {name: convolution.meta[name] for name in ("stack_trace", "nn_module_stack") if name in convolution.meta}
    node.meta = {**origin, "val": target(value.meta["val"], 0)}
    return node
