"""The reference graph as data: what each operator calls on what, so that any of them can be called again.

A saved edge program loses what QNN's passes noted on it and takes seconds to load. Here it is a list of calls and the
tensors they share, with the inputs in the order of the user's model and no trace of a backend.
"""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from tasks.errors import EvidenceError
from tasks.records import Blob
from tasks.storage.store import Store
from tasks.toolchain.export import dtype_name
from tasks.toolchain.tensors import put_tensors, read_tensors

Value = Any
"""What a call gives: a tensor, or a tuple of them that getitem calls take apart."""

GETITEM = "getitem"
_NAMED = {torch.dtype: "dtype", torch.memory_format: "memory_format", torch.layout: "layout", torch.device: "device"}


class NoKernel(Exception):
    """The host cannot make this call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One operator of the graph. In `arguments` and `keywords` a mapping of one key names what is no plain value."""

    target: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    dtype: str | None


class ReferenceGraph:
    """Calls, numbered like the operator table, on the program's inputs and constants."""

    def __init__(self, calls: Sequence[Call], outputs: Sequence[Any], constants: Mapping[str, torch.Tensor]) -> None:
        self.calls = tuple(calls)
        self.outputs = tuple(outputs)
        self.constants = constants
        self.sources = tuple(tuple(_named((call.arguments, call.keywords), "operator")) for call in self.calls)
        """For each call, the numbers of the calls that it reads."""
        self.output_calls = frozenset(_named(self.outputs, "operator"))
        """The calls whose values leave the program."""
        self.constant_calls: list[int] = []
        """The calls that follow from constants alone, in order."""
        for index, call in enumerate(self.calls):
            reads_input = next(iter(_named((call.arguments, call.keywords), "input")), None) is not None
            if not reads_input and all(source in self.constant_calls for source in self.sources[index]):
                self.constant_calls.append(index)

    def call(self, index: int, values: Mapping[int, Value], inputs: Sequence[torch.Tensor]) -> Value:
        """The call's value on `values` of other calls. Raises NoKernel when the host cannot make it."""
        call = self.calls[index]
        arguments = self._resolved(call.arguments, values, inputs)
        keywords = {key: self._resolved(each, values, inputs) for key, each in call.keywords.items()}
        value = _called(call.target, arguments, keywords)
        if isinstance(value, torch.Tensor) and call.dtype is not None:
            value = value.to(getattr(torch, call.dtype))
        return value

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[list[Value], dict[int, Value]]:
        """Final outputs and every call's value, from the program's inputs in the order of the user's model."""
        values: dict[int, Value] = {}
        for index in range(len(self.calls)):
            values[index] = self.call(index, values, inputs)
        return self.answer(values, inputs), values

    def answer(self, values: Mapping[int, Value], inputs: Sequence[torch.Tensor]) -> list[Value]:
        """The final outputs, given the values of the calls."""
        return list(self._resolved(list(self.outputs), values, inputs))

    def _resolved(self, encoded: Any, values: Mapping[int, Value], inputs: Sequence[torch.Tensor]) -> Any:
        if isinstance(encoded, list | tuple):
            return [self._resolved(each, values, inputs) for each in encoded]
        if not isinstance(encoded, dict):
            return encoded
        ((kind, name),) = encoded.items()
        match kind:
            case "operator":
                return values[name]
            case "input":
                return inputs[name]
            case "constant":
                return self.constants[name]
            case "float":
                return float(name)
            case "device":
                return torch.device(name)
            case "unsaid":
                raise NoKernel(f"{name} has no form as data")
            case _:
                return getattr(torch, name)


def graph_of(edge: ExportedProgram) -> ReferenceGraph:
    """The calls of an edge program before delegation, in the order of the operator table."""
    signature = edge.graph_signature
    inputs = {name: position for position, name in enumerate(signature.user_inputs)}
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    held |= signature.inputs_to_lifted_tensor_constants
    numbers = {
        node: index for index, node in enumerate(each for each in edge.graph.nodes if each.op == "call_function")
    }
    constants: dict[str, torch.Tensor] = {}

    def encoded(value: Any) -> Any:
        if isinstance(value, Node):
            if value in numbers:
                return {"operator": numbers[value]}
            if value.name in inputs:
                return {"input": inputs[value.name]}
            if value.name in held:
                name = held[value.name]
                tensor = edge.state_dict.get(name, edge.constants.get(name))
                assert isinstance(tensor, torch.Tensor), f"{name} is a parameter, a buffer or a constant"
                constants[name] = tensor
                return {"constant": name}
            return {"unsaid": str(value)}
        if isinstance(value, list | tuple):
            return [encoded(each) for each in value]
        if isinstance(value, float):
            return {"float": repr(value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        for kind, name in _NAMED.items():
            if isinstance(value, kind):
                return {name: str(value).removeprefix("torch.")}
        return {"unsaid": str(value)}

    calls = [
        Call(
            target=target_name(node.target),
            arguments=tuple(encoded(each) for each in node.args),
            keywords={key: encoded(each) for key, each in node.kwargs.items()},
            dtype=dtype_name(node.meta["val"].dtype) if isinstance(node.meta.get("val"), torch.Tensor) else None,
        )
        for node in numbers
    ]
    returned: Any = edge.graph.output_node().args[0]
    answers = zip(returned, signature.output_specs, strict=True)
    outputs = [encoded(each) for each, spec in answers if spec.kind is OutputKind.USER_OUTPUT]
    return ReferenceGraph(calls, outputs, constants)


def put_graph(store: Store, graph: ReferenceGraph) -> tuple[Blob, Blob]:
    """The calls as JSON, the constants as safetensors."""
    written = {
        "calls": [[call.target, call.arguments, call.keywords, call.dtype] for call in graph.calls],
        "outputs": graph.outputs,
    }
    return store.put_bytes(json.dumps(written).encode()), put_tensors(store, graph.constants)


def read_graph(store: Store, calls: Blob, constants: Blob) -> ReferenceGraph:
    """What `put_graph` kept. Raises EvidenceError for anything else."""
    try:
        written = json.loads(store.read(calls))
        known = [
            Call(target=target, arguments=tuple(arguments), keywords=keywords, dtype=dtype)
            for target, arguments, keywords, dtype in written["calls"]
        ]
        outputs = list(written["outputs"])
    except (ValueError, TypeError, KeyError) as error:
        raise EvidenceError(f"blob {calls.sha256} is no reference graph: {error}") from error
    return ReferenceGraph(known, outputs, read_tensors(store, constants))


def target_name(target: Any) -> str:
    if target is operator.getitem:
        return GETITEM
    return str(target._op if isinstance(target, EdgeOpOverload) else target)


def _called(target: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Value:
    """An operator that the host has no mixed-precision kernel for is computed in float32."""
    if target == GETITEM:
        return arguments[0][arguments[1]]
    kernel: Any = torch.ops
    for part in target.split("."):
        kernel = getattr(kernel, part, None)
    if kernel is None:
        raise NoKernel(f"{target} is not registered on this host")
    try:
        return kernel(*arguments, **keywords)
    except (RuntimeError, NotImplementedError) as error:
        floats = {leaf.dtype for leaf in tree_leaves((arguments, keywords)) if _is_float(leaf)}
        if len(floats) < 2:
            raise NoKernel(f"{target}: {error}") from error
    arguments, keywords = tree_map(_widened, (arguments, keywords))
    try:
        return kernel(*arguments, **keywords)
    except (RuntimeError, NotImplementedError) as error:
        raise NoKernel(f"{target}: {error}") from error


def _is_float(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _widened(value: object) -> object:
    return value.float() if _is_float(value) else value


def _named(encoded: Any, kind: str) -> Iterable[int]:
    """Numbers of the calls named anywhere in an encoded argument, each once."""
    found: dict[int, None] = {}
    leaves, _ = tree_flatten(encoded, is_leaf=lambda each: isinstance(each, dict) and set(each) == {kind})
    for leaf in leaves:
        if isinstance(leaf, dict):
            found[leaf[kind]] = None
    return found
