"""The facts that a single node of a graph states.

The functions import ExecuTorch late, because a process that only reads a stored graph does without it.
"""

import contextlib
import math
import operator
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from qnnsweep.tasks.records.source_lines import line_in_words, portable

_ATEN = torch.ops.aten
CONVOLUTIONS = (
    *(_ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default, _ATEN.convolution.default),
    *(_ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input),
)
"""The convolutions of an exported program. They read a value, a weight and a bias."""
GETITEM = "getitem"
"""The name of the target of a node that takes a value out of a tuple."""
OBSERVER_REPLACEMENT = "replace_observer_with_quantize_dequantize_node"
"""The pass of torchao that replaces an observer by the nodes that round a value, as the ancestry of nodes names it."""
_LOG_ALIGNMENT_BYTES = 64


def make_portable(program: ExportedProgram) -> None:
    """Take what the stack traces of a program say about this machine out of them; see `portable`."""
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, GraphModule) else ():
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = portable(trace)


def target_name(target: Any) -> str:
    """Return the name of the operator that a node calls, with its overload: `aten.cat.default`."""
    if target is operator.getitem:
        return GETITEM
    from executorch.exir.dialects.edge._ops import EdgeOpOverload

    return str(target._op if isinstance(target, EdgeOpOverload) else target)


def attribute(module: GraphModule, node: Node) -> torch.Tensor:
    """Return the tensor of a module that a node reads."""
    owner, _, name = str(node.target).rpartition(".")
    return getattr(module.get_submodule(owner), name)


def schema_name(node: Node) -> str:
    """Return the name of the operator that a node calls, without its overload: `aten::cat`; empty for other nodes."""
    return str(getattr(getattr(node.target, "_schema", None), "name", ""))


def held_tensors(program: ExportedProgram) -> dict[str, str]:
    """Return the names of the parameters, buffers and constants of a program, by those of their placeholders."""
    signature = program.graph_signature
    held = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    return {**held, **signature.inputs_to_parameters}


def named_arguments(node: Node) -> dict[str, Any]:
    """Return the arguments that a call states, by the names that its operator has for them."""
    names = [argument.name for argument in cast(Any, node.target)._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def module_of(node: Node) -> str:
    """Return the path of the module whose code calls the operator; empty for the model itself."""
    modules = list(node.meta.get("nn_module_stack", {}).values())
    return str(modules[-1][0]) if modules else ""


@contextlib.contextmanager
def naming_nodes() -> Iterator[None]:
    """Add a note to an error of a pass over a graph: the node that the pass was at, and the user's line."""
    try:
        yield
    except Exception as error:
        if (place := _place(error)) is not None:
            error.add_note(f"at {place}")
        raise


def _place(error: BaseException) -> str | None:
    """Return the node in the innermost call that has one, with its line; None if no call has a node with a line.

    The calls of the error that caused this one are further in.
    """
    if error.__cause__ is not None and (place := _place(error.__cause__)) is not None:
        return place
    frame, place = error.__traceback__, None
    while frame is not None:
        node = frame.tb_frame.f_locals.get("node", frame.tb_frame.f_locals.get("n"))
        if isinstance(node, Node) and (line := line_in_words(node.meta.get("stack_trace") or "")):
            place = f"{node.name}, {line}"
        frame = frame.tb_next
    return place


def handle_of(node: Node) -> int | None:
    """Return the debug handle that the export gave a node; None if it gave none."""
    from executorch.exir.debug_handle_utils import UNSET_DEBUG_HANDLE

    handle = node.meta.get("debug_handle")
    return None if handle in (None, UNSET_DEBUG_HANDLE) else int(handle)


def output_index_of(node: object) -> int:
    """Return which output of a node with several outputs a getitem node takes. For other nodes, return 0."""
    return cast(int, node.args[1]) if isinstance(node, Node) and node.target is operator.getitem else 0


def logged_bytes(tensor: torch.Tensor, element_bytes: int | None = None) -> int:
    """Return an upper bound for a tensor's bytes in the debug buffer.

    `element_bytes`: the size of one element; by default, the size of an element of the tensor's dtype.
    """
    size = tensor.numel() * (element_bytes or tensor.element_size())
    return math.ceil(size / _LOG_ALIGNMENT_BYTES) * _LOG_ALIGNMENT_BYTES + _LOG_ALIGNMENT_BYTES
