"""The reference graph as data: the target and the arguments of every operator, so that operators can be called again.

A saved edge program loses the attributes of QNN's passes, and takes seconds to load. Instead, a reference graph is a
list of calls and their constants. Its inputs are in the order of the user's model; nothing is specific to a backend.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, TypeGuard

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of quantized graphs
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.numerics.arithmetic import last_reads
from qnnsweep.tasks.records import Design
from qnnsweep.tasks.toolchain.nodes import GETITEM, held_tensors, target_name
from qnnsweep.tasks.toolchain.tensors import LARGEST_BIAS, dtype_name

WITH_WEIGHT = ("aten.convolution.default", "aten.linear.default")
Value = Any
"""The value of a call: a tensor, or a tuple of tensors, whose elements getitem calls return."""

_NOTHING: Mapping[int, Value] = MappingProxyType({})
_CLAMPS = frozenset({"aten.clamp.default", "aten.hardtanh.default", "aten.relu.default"})
_NAMED_CONSTANTS = {
    torch.dtype: "dtype",
    torch.memory_format: "memory_format",
    torch.layout: "layout",
    torch.device: "device",
}


def _unchanged(_index: int, value: Value) -> Value:
    return value


class NoKernel(Exception):
    """The error that is raised if the host cannot compute a call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One operator of the graph. In its arguments, a mapping with one key encodes a value that JSON cannot store."""

    target: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    dtype: str | None


class ReferenceGraph:
    """The calls of a graph, numbered like the rows of the operator table, with the constants that they read."""

    def __init__(
        self,
        calls: Sequence[Call],
        outputs: Sequence[Any],
        constants: Mapping[str, torch.Tensor],
        rescaled: frozenset[int] = frozenset(),
    ) -> None:
        """`rescaled`: the calls that dequantize a bias with the scale of another call; see `as_read`."""
        self._rescaled = rescaled
        self.calls = tuple(calls)
        self.outputs = tuple(outputs)
        self.constants = constants
        self.sources = tuple(tuple(_named((call.arguments, call.keywords), "operator")) for call in self.calls)
        """Per call, the numbers of the calls that it reads."""
        self.output_calls = frozenset(_named(self.outputs, "operator"))
        """The calls whose values are final outputs."""
        self.constant_calls: list[int] = []
        """The calls that depend only on constants, in graph order."""
        self.clamped_calls = self._clamped()
        """The calls that only clamps read. A compiler merges the clamp into the call and rounds only the clamp's
        result, so the call's own grid is never applied."""
        self.reading_inputs = frozenset(
            index for index, call in enumerate(self.calls) if _named((call.arguments, call.keywords), "input")
        )
        """The calls that read an input of the model."""
        for index in range(len(self.calls)):
            if index not in self.reading_inputs and all(
                source in self.constant_calls for source in self.sources[index]
            ):
                self.constant_calls.append(index)

    def _clamped(self) -> frozenset[int]:
        read = {source for sources in self.sources for source in sources}
        others = (sources for call, sources in zip(self.calls, self.sources, strict=True) if call.target not in _CLAMPS)
        return frozenset(read.difference(self.output_calls, *others))

    @cached_property
    def last_reads(self) -> Mapping[int, Sequence[int]]:
        """Per call, the calls whose values are not read after it and are no final outputs."""
        return last_reads(self.sources, self.output_calls)

    def with_half_constants(self) -> "ReferenceGraph":
        """Return the graph with its float32 constants rounded to float16, in float32."""
        constants = {
            name: tensor.half().float() if tensor.dtype == torch.float32 else tensor
            for name, tensor in self.constants.items()
        }
        return ReferenceGraph(self.calls, self.outputs, constants, self._rescaled)

    def dequantizes(self, index: int) -> bool:
        """Return whether a call dequantizes a constant that has one scale, or one per channel."""
        return index in self._constant_calls and ".dequantize_per_" in self.calls[index].target

    def scale_of(self, index: int) -> torch.Tensor | None:
        """Return the scales by which a call dequantizes a constant; None if it dequantizes none."""
        if not self.dequantizes(index):
            return None
        encoded = self.calls[index].arguments[1]
        if "float" in encoded:
            return torch.tensor([float(encoded["float"])])
        return self.constants[encoded["constant"]] if "constant" in encoded else None

    def reads_constants(self, index: int) -> bool:
        """Return whether a call reads constants of the graph, itself or through calls that read only constants."""
        call = self.calls[index]
        read = _named((call.arguments, call.keywords), "constant")
        return bool(read) or any(source in self._constant_calls for source in self.sources[index])

    def as_read(self, design: Design) -> "ReferenceGraph":
        """Return the graph with the constants as the device reads them.

        Biases have the scales by which the device multiplies them, and 16-bit weights saturate as in its kernels.
        """
        limit = design.largest_weight
        calls, constants = [*self.calls], dict(self.constants)
        if limit is not None:
            weights = {name: constants[name] for name in self._weights()}
            constants |= {name: each.clamp(max=limit) for name, each in weights.items() if each.dtype == torch.int16}
        for bias in design.shared_biases:
            name, call = f"scale of {bias.dequantize}", calls[bias.dequantize]
            constants[name] = torch.tensor(bias.scale)
            scale = {"constant": name} if "per_channel" in call.target else {"float": repr(bias.scale[0])}
            calls[bias.dequantize] = replace(call, arguments=(call.arguments[0], scale, *call.arguments[2:]))
        rescaled = frozenset(bias.dequantize for bias in design.shared_biases)
        return ReferenceGraph(calls, self.outputs, constants, rescaled)

    def _weights(self) -> Iterator[str]:
        """Yield the names of the constants that convolutions and linear layers read as weights."""
        for call in self.calls:
            index = index_of(call.arguments[1]) if call.target in WITH_WEIGHT else None
            while index is not None and index >= 0 and not self.dequantizes(index):
                index = self.sources[index][0] if len(self.sources[index]) == 1 else None
            if index is not None and index >= 0 and "constant" in self.calls[index].arguments[0]:
                yield self.calls[index].arguments[0]["constant"]

    @cached_property
    def misread_biases(self) -> frozenset[int]:
        """The calls that dequantize biases with an element at an end of the range of 32 bits, which saturates, and
        those of `as_read`."""
        saturated = {name for name, tensor in self.constants.items() if _is_saturated(tensor)}
        return self._rescaled.union(
            index
            for index in self.constant_calls
            if saturated.intersection(map(str, _named(self.calls[index].arguments, "constant")))
        )

    @cached_property
    def _constant_calls(self) -> frozenset[int]:
        return frozenset(self.constant_calls)

    def call(self, index: int, values: Mapping[int, Value], inputs: Sequence[torch.Tensor]) -> Value:
        """Compute a call from the values of other calls. Raises NoKernel if the host cannot compute it."""
        call = self.calls[index]
        arguments = self._resolved(call.arguments, values, inputs)
        keywords = {key: self._resolved(value, values, inputs) for key, value in call.keywords.items()}
        value = _called(call.target, arguments, keywords)
        if isinstance(value, torch.Tensor) and call.dtype is not None:
            value = value.to(getattr(torch, call.dtype))
        return value

    def tensors(
        self, inputs: Sequence[torch.Tensor], constants: Mapping[int, Value] = _NOTHING
    ) -> dict[int, torch.Tensor]:
        """Return the value of every call that is a tensor and does not depend on constants alone.

        `constants`: see `walk`.
        """
        values: dict[int, torch.Tensor] = {}

        def keep(index: int, value: Value) -> Value:
            if isinstance(value, torch.Tensor) and index not in self._constant_calls:
                values[index] = value
            return value

        self.walk(inputs, constants, keep)
        return values

    def walk(
        self,
        inputs: Sequence[torch.Tensor],
        constants: Mapping[int, Value] = _NOTHING,
        change: Callable[[int, Value], Value] = _unchanged,
    ) -> list[Value]:
        """Return the final outputs of a run in which `change` replaces the value of every call not in `constants`.

        `inputs` are in the order of the user's model. `constants`: the values of calls that depend only on constants.
        A value is released after the last call that reads it.
        """
        values = dict(constants)
        for index in range(len(self.calls)):
            if index not in constants:
                values[index] = change(index, self.call(index, values, inputs))
            for source in self.last_reads.get(index, ()):
                del values[source]
        return self.answer(values, inputs)

    def answer(self, values: Mapping[int, Value], inputs: Sequence[torch.Tensor]) -> list[Value]:
        """Return the final outputs. `values`: the values of the calls that the outputs read."""
        return list(self._resolved(list(self.outputs), values, inputs))

    def _resolved(self, encoded: Any, values: Mapping[int, Value], inputs: Sequence[torch.Tensor]) -> Any:
        if isinstance(encoded, list | tuple):
            return [self._resolved(element, values, inputs) for element in encoded]
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
                raise NoKernel(f"{name} cannot be stored as data")
            case _:
                value = getattr(torch, name, None)
                if not isinstance(value, torch.dtype | torch.memory_format | torch.layout):
                    raise NoKernel(f"torch.{name} is neither a type nor a layout")
                return value


def graph_of(edge: ExportedProgram) -> ReferenceGraph:
    """Return the calls of an edge program before delegation, in the order of the operator table."""
    signature = edge.graph_signature
    inputs = {name: position for position, name in enumerate(signature.user_inputs)}
    held = held_tensors(edge)
    nodes = [node for node in edge.graph.nodes if node.op == "call_function"]
    numbers = {node: number for number, node in enumerate(nodes)}
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
            return [encoded(element) for element in value]
        if isinstance(value, float):
            return {"float": repr(value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        for kind, name in _NAMED_CONSTANTS.items():
            if isinstance(value, kind):
                return {name: str(value).removeprefix("torch.")}
        return {"unsaid": str(value)}

    calls = [
        Call(
            target=target_name(node.target),
            arguments=tuple(map(encoded, node.args)),
            keywords={key: encoded(value) for key, value in node.kwargs.items()},
            dtype=dtype_name(node.meta["val"].dtype) if isinstance(node.meta.get("val"), torch.Tensor) else None,
        )
        for node in nodes
    ]
    returned: Any = edge.graph.output_node().args[0]
    pairs = zip(returned, signature.output_specs, strict=True)
    outputs = [encoded(output) for output, spec in pairs if spec.kind is OutputKind.USER_OUTPUT]
    return ReferenceGraph(calls, outputs, constants)


def _called(target: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Value:
    """Compute an operator. If its arguments have several float types and no kernel accepts this mix, use float32."""
    if target == GETITEM:
        return arguments[0][arguments[1]]
    kernel = _registered(target)
    try:
        return kernel(*arguments, **keywords)
    except (RuntimeError, IndexError) as error:
        raise_shortage(error)
        if len({leaf.dtype for leaf in tree_leaves((arguments, keywords)) if is_float(leaf)}) < 2:
            raise NoKernel(f"{target}: {error}") from error
    arguments, keywords = tree_map(lambda leaf: leaf.float() if is_float(leaf) else leaf, (arguments, keywords))
    try:
        return kernel(*arguments, **keywords)
    except (RuntimeError, IndexError) as error:
        raise_shortage(error)
        raise NoKernel(f"{target}: {error}") from error


@cache
def _registered(target: str) -> OpOverload:
    """Return the operator `<namespace>.<name>.<overload>`. Nothing but a registered operator is ever called.

    A reference graph comes from a store that others can write to: `torch.ops` also has functions that load libraries,
    and some operators read and write files. Raises NoKernel.
    """
    kernel = overload(target)
    if kernel is None:
        raise NoKernel(f"{target} is not registered on this host")
    if any(argument.name == "filename" for argument in kernel._schema.arguments):
        raise NoKernel(f"{target} uses a file")
    return kernel


def overload(target: str) -> OpOverload | None:
    """Return the operator `<namespace>.<name>.<overload>`; None if it is not registered."""
    kernel: object = torch.ops
    parts = target.split(".")
    for part in parts if len(parts) == 3 else ():
        kernel = getattr(kernel, part, None)
    return kernel if isinstance(kernel, OpOverload) else None


def is_float(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def index_of(argument: Any) -> int | None:
    """Return the number of a call or, as -1, -2 and so on, of an input that an encoded argument names."""
    if not isinstance(argument, Mapping):
        return None
    return argument["operator"] if "operator" in argument else -1 - argument["input"] if "input" in argument else None


def _is_saturated(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.int32 and not bool(((tensor > -LARGEST_BIAS) & (tensor < LARGEST_BIAS)).all())


def _named(encoded: Any, kind: str) -> list[int]:
    """Return the numbers in the mappings `{kind: number}` that `encoded` contains, without duplicates."""
    return list(dict.fromkeys(_numbers(encoded, kind)))


def _numbers(encoded: Any, kind: str) -> Iterator[int]:
    if isinstance(encoded, dict) and encoded.keys() == {kind}:
        yield encoded[kind]
    elif isinstance(encoded, dict | list | tuple):
        for element in encoded.values() if isinstance(encoded, dict) else encoded:
            yield from _numbers(element, kind)
