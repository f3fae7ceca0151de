"""Recurrent layers of an exported program, step by step.

torch.export keeps `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells as one operator each, which has no grids. In the
operators of the steps, a quantizer recognizes linear layers, sums and activations.
"""

import operator
from collections.abc import Callable, Container, Mapping
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from qnnsweep.tasks.toolchain.fold import add_constants
from qnnsweep.tasks.toolchain.nodes import schema_name
from qnnsweep.tasks.toolchain.writes import writes

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_RECURRENT = frozenset(f"aten::{name}{suffix}" for name in _LAYERS for suffix in ("", "_cell"))
_FOUND_BY_SOURCE: Mapping[object, str] = {torch.ops.aten.unbind.int: "unbind", torch.ops.aten.stack.default: "stack"}


def unrolled(program: ExportedProgram) -> ExportedProgram:
    """Return the program with the operators of each step in place of its recurrent layers.

    The steps are functional. A program that changes its inputs or buffers is returned as it is, because it is refused.
    """
    layers = [node for node in program.graph.nodes if schema_name(node) in _RECURRENT]
    if not layers or any(write.base.op == "placeholder" for write in writes(program.graph)):
        return program
    read = {source.name for layer in layers for source in layer.all_input_nodes}
    table = cast(dict[Any, Callable[..., Any]], torch.export.default_decompositions().materialize())
    program = program.run_decompositions({layer.target: table[layer.target] for layer in layers})
    for node in program.graph.nodes:
        # ExecuTorch's quantizer knows this operator by its other name only.
        if node.target is torch.ops.aten.unsafe_split.Tensor:
            node.target = torch.ops.aten.split.Tensor
        # ExecuTorch's passes find these operators by the function that the user called, which is the layer here.
        called = node.args[0] if node.target is operator.getitem else node
        if isinstance(called, Node) and called.target in _FOUND_BY_SOURCE:
            node.meta["source_fn_stack"] = [(called.name, _FOUND_BY_SOURCE[called.target])]
    _copy_biases(program, read)
    program.graph_module.recompile()
    return program


def _copy_biases(program: ExportedProgram, read: Container[str]) -> None:
    """Give each step a bias of its own: ExecuTorch scales a shared one by the grid of the first value read with it.

    `read`: the names of what the layers read. The biases that other operators share stay, as in the user's own flow.
    """
    parameters, seen = program.graph_signature.inputs_to_parameters, set[Node]()
    shared: list[tuple[Node, Node]] = []
    for node in program.graph.nodes:
        bias = node.args[2] if node.target is torch.ops.aten.linear.default and len(node.args) > 2 else None
        if isinstance(bias, Node) and bias.name in read and bias.name in parameters:
            shared += [(node, bias)] if bias in seen else []
            seen.add(bias)
    found = [(bias.name, program.state_dict[parameters[bias.name]].detach().clone(), bias.meta) for _, bias in shared]
    for (node, _), copied in zip(shared, add_constants(program, found), strict=True):
        node.args = (*node.args[:2], copied)
