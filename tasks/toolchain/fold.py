"""Values of an exported program that depend on no input, computed once and stored as constants.

The compiler of a backend refuses a subgraph without inputs, and a quantizer puts grids on tables that are computed from
`torch.arange`. A weight that is computed from others (weight standardization, a sum with an adapter's matrix) becomes a
constant that the quantizer recognizes as a weight by its reader.
"""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.fx.node import map_arg

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.toolchain.nodes import CONVOLUTIONS, held_tensors, schema_name
from qnnsweep.tasks.toolchain.writes import is_random, shares_memory, written_memory

_MOST_BYTES = 2**26
"""The size of a value above which it is computed at run time, as the user's code does."""
_PREFIX = "folded"
_CHECK = torch.ops.aten._assert_tensor_metadata.default
"""Checks at run time what torch.export knows of a value. A constant has passed the check."""
_WEIGHTED = (torch.ops.aten.linear.default, *CONVOLUTIONS)
"""The operators whose second argument is a weight, and whose third is a bias."""
_FILLS = re.compile("aten::(full|zeros|ones|empty|scalar_tensor|arange)(_permuted|_strided)?")
"""The operators that fill a tensor with one number or with steps, which every backend does by itself. Other operators
without inputs, such as torch.hann_window and torch.eye, compute a table."""
_MOVES = (torch.ops.aten.clone.default, torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.embedding.default)


def fold_constants(program: ExportedProgram, *, of_weights: bool = True) -> None:
    """Replace the values of a program that depend on no input by constants, in place.

    `of_weights`: whether values that depend on parameters and buffers are constants, too. Those of a quantized program
    stay, because their readers need their grids.

    A value that is only filled (`torch.zeros`), viewed or looked up stays: nothing is computed. But a view that reads
    memory in its order is a constant if a convolution or a linear layer reads it as its weight: the quantizer would not
    recognize it. Values that are changed in place, random numbers, and the outputs of the program stay, too.
    """
    values = _values(program, of_weights)
    folded = [
        node
        for node, (value, is_computed) in values.items()
        if isinstance(value, torch.Tensor)
        and (is_computed or (of_weights and value.is_contiguous() and _is_viewed_weight(node)))
        and value.numel() * value.element_size() <= _MOST_BYTES
        and any(user not in values and user.op != "output" and user.target is not _CHECK for user in node.users)
    ]
    if not folded:
        return
    found = [(_PREFIX, values[node][0].contiguous().clone(), node.meta) for node in folded]
    for node, constant in zip(folded, add_constants(program, found), strict=True):
        node.replace_all_uses_with(
            constant, delete_user_cb=lambda user: user.op != "output" and user.target is not _CHECK
        )
    _erase_unused(program, values)
    program.graph_module.recompile()


def add_constants(
    program: ExportedProgram, constants: Sequence[tuple[str, torch.Tensor, Mapping[str, Any]]]
) -> list[Node]:
    """Add constants to a program and return their placeholders, the last ones before the inputs of the user.

    `constants`: for each, the beginning of its name, its value, and the metadata of the node that it replaces.
    """
    graph, first = program.graph, next(node for node in program.graph.nodes if node.op != "placeholder")
    mode = cast(FakeTensorMode, next(iter(_fakes(program))).fake_mode)
    taken = {node.name for node in graph.nodes} | {*program.constants, *program.state_dict}
    users, numbers = _first_user_input(program), count()
    added: list[Node] = []
    for prefix, value, origin in constants:
        name = next(name for number in numbers if (name := f"{prefix}_{number}") not in taken)
        with graph.inserting_before(users or first):
            constant = graph.placeholder(name)
        constant.meta = {**origin, "val": mode.from_tensor(value, static_shapes=True)}
        program.constants[name] = value
        added.append(constant)
    _declare(program, added)
    return added


def _is_viewed_weight(node: Node) -> bool:
    return node.op == "call_function" and any(
        user.target in _WEIGHTED and any(argument is node for argument in user.args[1:3]) for user in node.users
    )


def _values(program: ExportedProgram, of_weights: bool) -> dict[Node, tuple[Any, bool]]:
    """Return the constants of a program, each a tensor or several, and whether something was computed for it."""
    held = held_tensors(program) if of_weights else {}
    changed, values = written_memory(program.graph), cast(dict[Node, tuple[Any, bool]], {})
    for node in program.graph.nodes:
        if node in changed:
            continue
        if node.op == "placeholder" and node.name in held:
            value = {**program.state_dict, **program.constants}[held[node.name]]
            if isinstance(value, torch.Tensor):
                values[node] = (value.detach(), False)
        elif node.target is operator.getitem and node.args[0] in values:
            parts, is_computed = values[cast(Node, node.args[0])]
            values[node] = (parts[node.args[1]], is_computed)
        elif node.op == "call_function" and hasattr(node.target, "_schema"):
            sources = node.all_input_nodes
            if any(source not in values for source in sources) or not _is_foldable(node):
                continue
            value = _computed(node, {source: values[source][0] for source in sources})
            if isinstance(value, torch.Tensor | tuple | list):
                is_given = _only_moves(node) if sources else _is_filled(node)
                values[node] = (value, not is_given or any(values[source][1] for source in sources))
    return values


def _is_foldable(node: Node) -> bool:
    """Return whether an operator gives the same value each time, and puts it on no grid, which its readers need."""
    return not is_random(node) and not node.is_impure() and "quantize" not in schema_name(node)


def _is_filled(node: Node) -> bool:
    """Return whether an operator without inputs fills a tensor, and computes no table."""
    return _FILLS.fullmatch(schema_name(node)) is not None


def _only_moves(node: Node) -> bool:
    """Return whether the elements of a value are those of another value. In the edge dialect, views are copies."""
    return node.target in _MOVES or schema_name(node).endswith("_copy") or shares_memory(node) is not None


def _computed(node: Node, sources: Mapping[Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: sources[source])
    try:
        with torch.no_grad():
            return cast(Any, node.target)(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:  # NotImplementedError is a RuntimeError
        raise_shortage(error)
        return None  # the export has made it, and eager PyTorch has run it: another device or mode is needed


def _fakes(program: ExportedProgram) -> Iterable[Any]:
    return (node.meta["val"] for node in program.graph.nodes if hasattr(node.meta.get("val"), "fake_mode"))


def _first_user_input(program: ExportedProgram) -> Node | None:
    names = program.graph_signature.user_inputs
    return next((node for node in program.graph.nodes if node.op == "placeholder" and node.name in names), None)


def _erase_unused(program: ExportedProgram, values: Mapping[Node, object]) -> None:
    for node in reversed(program.graph.nodes):
        is_check = node.target is _CHECK and node.args[0] in values
        if is_check or (node in values and node.op == "call_function" and not node.users):
            program.graph.erase_node(node)


def _declare(program: ExportedProgram, constants: Sequence[Node]) -> None:
    """Give a program the signature with new constants, which are before the inputs of the user."""
    signature = program.graph_signature
    position = next(
        (number for number, given in enumerate(signature.input_specs) if given.kind is InputKind.USER_INPUT),
        len(signature.input_specs),
    )
    specs = [
        InputSpec(kind=InputKind.CONSTANT_TENSOR, arg=TensorArgument(name=node.name), target=str(node.target))
        for node in constants
    ]
    inputs = [*signature.input_specs[:position], *specs, *signature.input_specs[position:]]
    program._graph_signature = ExportGraphSignature(input_specs=inputs, output_specs=signature.output_specs)
