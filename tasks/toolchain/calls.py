"""The operator calls of an exported program, before it is decomposed or quantized."""

import operator
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from qnnsweep.tasks.records import OperatorCall
from qnnsweep.tasks.toolchain.nodes import module_of, named_arguments
from qnnsweep.tasks.toolchain.tensors import dtype_name

_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def operator_calls(program: torch.export.ExportedProgram) -> tuple[OperatorCall, ...]:
    """Return the operator calls of a program. Calls with equal texts are one record, in the order of the first one."""
    calls: dict[str, OperatorCall] = {}
    for node, text in call_texts(program):
        first = calls.get(text)
        calls[text] = OperatorCall(
            text=text,
            count=first.count + 1 if first else 1,
            module_path=first.module_path if first else module_of(node),
        )
    return tuple(calls.values())


def call_texts(program: torch.export.ExportedProgram) -> Iterator[tuple[Node, str]]:
    """Yield every node that calls an operator, and the text of the call (`OperatorCall.text`)."""
    constants = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind in _CONSTANTS}
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            arguments = ", ".join(_arguments(node, constants))
            yield node, f"{node.target}({arguments}){_used_outputs(node)}"


def _arguments(node: Node, constants: set[str]) -> Iterator[str]:
    """Yield the tensors, then the other arguments with their names. Those with their default values are left out."""
    schema = cast(Any, node.target)._schema.arguments
    named = named_arguments(node)
    tensors = [name for name, value in named.items() if _has_tensor(value)]
    yield from (_argument(named[name], constants) for name in tensors)
    for argument in schema:
        name = argument.name
        if name in named and name not in tensors and not _is_default(argument, named[name]):
            yield f"{name}={_argument(named[name], constants)}"


def _has_tensor(value: object) -> bool:
    return isinstance(value, Node) or (isinstance(value, list | tuple) and any(map(_has_tensor, value)))


def _is_default(argument: Any, value: object) -> bool:
    """Return whether an argument has its default value. A default of 1 for a list means that all its items are 1."""
    default = argument.default_value
    if isinstance(value, list | tuple) and isinstance(default, int | float):
        return all(item == default for item in value)
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return list(value) == list(default)
    return argument.has_default_value() and type(value) is type(default) and value == default


def _used_outputs(node: Node) -> str:
    """Return which outputs of a call are used, as ` -> [0, 1]`; nothing if the call has one output."""
    if not isinstance(node.meta.get("val"), list | tuple):
        return ""
    readers = (user for user in node.users if user.target is operator.getitem and user.users)
    return f" -> {sorted({int(cast(Any, reader.args[1])) for reader in readers})}"


def _argument(value: object, constants: set[str]) -> str:
    if isinstance(value, Node):
        tensor = value.meta.get("val")
        text = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else str(tensor)
        return f"constant {text}" if value.name in constants else text
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(item, constants) for item in value)}]"
    return dtype_name(value) if isinstance(value, torch.dtype) else str(value)
