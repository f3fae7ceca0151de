"""Tensors without elements, such as the cache of a decoder before its first token. No runtime loads their constants."""

from typing import cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.fx import Node

_CATS = (torch.ops.aten.cat.default, torch.ops.aten.concat.default)


def drop_empty_tensors(program: ExportedProgram) -> None:
    """Remove tensors without elements from concatenations, and then all of them that are not used, in place."""
    graph = program.graph
    for node in [node for node in graph.nodes if node.target in _CATS]:
        parts = cast(list[Node], node.args[0])
        kept = [part for part in parts if not _is_empty(part)]
        if len(kept) == len(parts) or not kept or any(_dtype(part) != _dtype(node) for part in kept):
            continue
        node.args = (kept, *node.args[1:])
        if len(kept) == 1:
            node.replace_all_uses_with(kept[0])
            graph.erase_node(node)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and _is_empty(node) and not node.users:
            graph.erase_node(node)
    _drop_unused_constants(program)
    program.graph_module.recompile()


def _drop_unused_constants(program: ExportedProgram) -> None:
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    unused = [
        spec
        for spec in signature.input_specs
        if spec.kind is InputKind.CONSTANT_TENSOR and not placeholders[spec.arg.name].users
    ]
    for spec in unused:
        program.graph.erase_node(placeholders[spec.arg.name])
    inputs = [spec for spec in signature.input_specs if spec not in unused]
    program._graph_signature = ExportGraphSignature(input_specs=inputs, output_specs=signature.output_specs)
    for name in {spec.target for spec in unused} - {spec.target for spec in inputs}:
        program.constants.pop(cast(str, name), None)


def _is_empty(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.numel() == 0


def _dtype(node: Node) -> object:
    return getattr(node.meta.get("val"), "dtype", None)
