"""Convolutions without a batch dimension, which PyTorch accepts and a quantizer's weights do not fit."""

from typing import cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

_ATEN = torch.ops.aten
_CONVOLUTIONS = (
    *(_ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default, _ATEN.convolution.default),
    *(_ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input),
)


def add_batches(program: ExportedProgram) -> None:
    """Give each convolution that reads a value without a batch dimension a batch of one, in place."""
    graph = program.graph
    for node in [node for node in graph.nodes if node.target in _CONVOLUTIONS]:
        read, weight = (cast(Node, node.args[position]) for position in (0, 1))
        if read.meta["val"].dim() != weight.meta["val"].dim() - 1:
            continue
        with graph.inserting_before(node):
            batch = _called(node, _ATEN.unsqueeze.default, read)
        node.args = (batch, *node.args[1:])
        single, node.meta["val"] = node.meta["val"], node.meta["val"].unsqueeze(0)
        with graph.inserting_after(node):
            result = _called(node, _ATEN.squeeze.dim, node)
        result.meta["val"] = single
        node.replace_all_uses_with(result, delete_user_cb=lambda user, result=result: user is not result)
        program.graph_signature.replace_all_uses(node.name, result.name)
    program.graph_module.recompile()


def _called(convolution: Node, target: torch._ops.OpOverload, value: Node) -> Node:
    """Insert the call of a view of the first dimension, at the line of the convolution."""
    node = convolution.graph.call_function(target, (value, 0))
    origin = {name: convolution.meta[name] for name in ("stack_trace", "nn_module_stack") if name in convolution.meta}
    node.meta = {**origin, "val": target(value.meta["val"], 0)}
    return node
