"""Batch norms as convolutions of their own: depthwise ones, with a kernel of 1×1.

`prepare_pt2e` of torchao folds a batch norm into the convolution or the linear layer that it reads, whoever else reads
it, its weight or its bias. They then compute with the weight of the batch norm, and the graph is another function than
the model. Of two batch norms one behind the other, it drops the second, and of a layer without a bias that is called
twice, the shift. A transposed convolution with groups gets a weight of another shape, or none.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from qnnsweep.tasks.toolchain.nodes import CONVOLUTIONS, attribute

_ATEN = torch.ops.aten
_BATCH_NORMS: Mapping[object, int] = {
    _ATEN.batch_norm.default: 7,
    _ATEN._native_batch_norm_legit_no_training.default: 6,
}
"""The position of `eps` among the arguments."""
_PADDED = (_ATEN.conv1d.padding, _ATEN.conv2d.padding, _ATEN.conv3d.padding)
_TRANSPOSED: Mapping[object, int] = dict.fromkeys(
    (_ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input), 6
)
"""The position of `groups` among the arguments."""
_WEIGHT, _BIAS = "_as_conv2d_weight", "_as_conv2d_bias"
_FOLDED_INTO = frozenset({*CONVOLUTIONS, *_PADDED, _ATEN.linear.default}) - {_ATEN.convolution.default}


def is_batch_norm(node: Node) -> bool:
    """Return whether a node computes a batch norm whose statistics and parameters are constants."""
    if node.target not in _BATCH_NORMS or node.args[5] is True:
        return False
    parameters, statistics = ([getattr(argument, "op", None) for argument in node.args[at : at + 2]] for at in (1, 3))
    return statistics == ["get_attr"] * 2 and {*parameters} <= {"get_attr", None}


def is_written_as_convolution(node: Node) -> bool:
    """Return whether a node is the convolution of a batch norm; see `as_convolutions`."""
    return node.target is _ATEN.conv2d.default and str(node.args[1].target).endswith(_WEIGHT)  # type: ignore[union-attr]


def with_own_convolutions(module: GraphModule) -> GraphModule:
    """Write the batch norms that torchao would fold wrongly as convolutions. Return the same module."""
    return as_convolutions(module, _would_be_wrong)


def _would_be_wrong(norm: Node) -> bool:
    """Return whether the graph would be another function if torchao folded a batch norm into what it reads."""
    layer = norm.all_input_nodes[0]
    if is_batch_norm(layer.all_input_nodes[0] if layer.target is operator.getitem else layer):
        return True
    if layer.target not in _FOLDED_INTO:
        return False
    if layer.target is _ATEN.linear.default and len(layer.all_input_nodes[0].meta["val"].shape) > 2:
        return False  # torchao does not fold it
    if layer.target in _TRANSPOSED and [*layer.args, *[1] * 9][_TRANSPOSED[layer.target]] != 1:
        return True
    calls = [*layer.args[1].users]  # type: ignore[union-attr] - of the weight
    held = {argument for call in calls for argument in call.args[1:3] if isinstance(argument, Node)}
    if any(node.op != "get_attr" or not {*node.users} <= {*calls} for node in held):
        return True
    biases = {[*call.args, None][2] for call in calls}
    if len(calls) > 1 and (None in biases or len(biases) > 1):
        return True
    norms = [_only_batch_norm(call) if call.target in _FOLDED_INTO else None for call in calls]
    return None in norms or len({each.args[1:] for each in norms if each is not None}) > 1


def _only_batch_norm(source: Node) -> Node | None:
    """Return the batch norm that is the only reader of a value; None if there are others."""
    (reader,) = source.users if len(source.users) == 1 else (None,)
    return reader if reader is not None and is_batch_norm(reader) and reader.args[0] is source else None


def as_convolutions(module: GraphModule, is_selected: Callable[[Node], bool]) -> GraphModule:
    """Write the batch norms that are selected as depthwise convolutions of 1×1. Return the same module."""
    for node in [node for node in module.graph.nodes if is_batch_norm(node) and is_selected(node)]:
        _write_as_convolution(module, node)
    module.recompile()
    return module


def _write_as_convolution(module: GraphModule, norm: Node) -> None:
    """Replace y = (x - mean) / sqrt(var + eps) · scale + shift, per channel, by a convolution with one weight each."""
    arguments: list[Any] = list(norm.args)
    mean, var = (attribute(module, argument) for argument in arguments[3:5])
    scale, shift = (
        torch.full_like(mean, default) if argument is None else attribute(module, argument)
        for argument, default in zip(arguments[1:3], (1.0, 0.0), strict=True)
    )
    weight = scale * torch.rsqrt(var + arguments[_BATCH_NORMS[norm.target]])
    bias = shift - mean * weight
    source, channels = arguments[0], weight.numel()
    shape = list(source.meta["val"].shape)
    with module.graph.inserting_before(norm):
        constants = [
            _constant(module, norm, _WEIGHT, weight.reshape(channels, 1, 1, 1)),
            _constant(module, norm, _BIAS, bias),
        ]
        value = source
        if len(shape) != 4:
            value = _call(norm, _ATEN.reshape.default, value, [shape[0], channels, math.prod(shape[2:]), 1])
        value = _call(norm, _ATEN.conv2d.default, value, *constants, [1, 1], [0, 0], [1, 1], channels)
        if len(shape) != 4:
            value = _call(norm, _ATEN.reshape.default, value, shape)
    results = [norm] if norm.target is _ATEN.batch_norm.default else [item for item in norm.users if item.args[1] == 0]
    for result in results:
        result.replace_all_uses_with(value)
    for node in dict.fromkeys((*results, norm, *norm.all_input_nodes[1:])):
        if not node.users:
            module.graph.erase_node(node)


def _constant(module: GraphModule, norm: Node, name: str, value: torch.Tensor) -> Node:
    """Give the module a parameter, and return the node that reads it."""
    held = norm.name + name
    module.register_parameter(held, torch.nn.Parameter(value.detach().clone(), requires_grad=False))
    node = module.graph.get_attr(held)
    node.meta["val"] = _fake(norm).fake_mode.from_tensor(value, static_shapes=True)
    return node


def _call(norm: Node, target: Callable[..., Any], *arguments: Any) -> Node:
    """Insert a call that has the ancestry and the line of the batch norm."""
    node = norm.graph.call_function(target, arguments)
    with _fake(norm).fake_mode:
        value = target(*(argument.meta["val"] if isinstance(argument, Node) else argument for argument in arguments))
    node.meta = {**norm.meta, "val": value}
    return node


def _fake(norm: Node) -> Any:
    """Return the fake tensor of a batch norm's result. Its mode makes those of other nodes."""
    value = norm.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value
