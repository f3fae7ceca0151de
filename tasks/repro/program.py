"""A small program: some operators of the edge graph, as the source of a module, with the values that they read."""

import json
import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Operator, Quantization
from qnnsweep.tasks.repro.case import Case
from qnnsweep.tasks.toolchain.nodes import GETITEM
from qnnsweep.tasks.toolchain.reference.graph import Call

Array = NDArray[Any]

_DEQUANTIZE = "quantized_decomposed.dequantize"
_TARGET = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*")
_LAYERS, _ROLES = ("aten.convolution.default", "aten.linear.default"), ("weight", "bias")
_RESERVED = frozenset((*keyword.kwlist, "self", "torch", "grid"))
_AFFIXES = re.compile(r"^(aten_+|quantized_decomposed_|dim_order_ops_+)|_(default|int|Tensor|Scalar)(?=_|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallProgram:
    """The source of a module's `forward`, the device's values that it reads, and its constants."""

    members: tuple[int, ...]
    """The indices of its operators, in the order of the graph. Constants that they read are left out."""
    outputs: tuple[int, ...]
    """The operators whose values it returns. The first is the operator that is compared."""
    forward: str
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]


def small_program(
    case: Case,
    members: Collection[int],
    outputs: Sequence[int],
    *,
    constants: Mapping[str, Any] | None = None,
    floats: bool = False,
) -> SmallProgram:
    """Return the program of these operators. Raises EvidenceError if they cannot be written as Python.

    `constants`: replaces constants. `floats`: round no value to a grid.
    """
    return _Writer(case, members, constants or {}, floats).program(outputs)


class _Writer:
    def __init__(self, case: Case, members: Collection[int], constants: Mapping[str, Any], floats: bool) -> None:
        self._case, self._members, self._floats = case, sorted(members), floats
        self._graph = case.graph
        self._replaced = constants
        self._names: dict[int, str] = {}
        self._taken: set[str] = set(_RESERVED)
        self._inputs: dict[tuple[object, ...], str] = {}
        self._arrays: dict[str, Array] = {}
        self._constants: dict[str, Array] = {}
        self._registered: dict[str, str] = {}
        self._before: list[str] = []
        self._lines: list[str] = []

    def program(self, outputs: Sequence[int]) -> SmallProgram:
        constants = frozenset(self._graph.constant_calls)
        for index in sorted({*self._members, *(() if self._floats else self._constants_read(constants))}):
            self._write(index, is_constant=index in constants)
        returned = ", ".join(self._names[index] for index in outputs)
        head = f"    def forward(self, {', '.join(self._arrays)}):"
        lines = [head, *self._before, *self._lines, f"        return {returned}" + ("," if len(outputs) == 1 else "")]
        return SmallProgram(
            members=tuple(self._members),
            outputs=tuple(outputs),
            forward="\n".join(lines),
            inputs=self._arrays,
            constants=self._constants,
        )

    def _constants_read(self, constants: Collection[int]) -> set[int]:
        """Return the operators on constants that the members read, directly or through other constants.

        The scale and the zero point of a weight must be constants of the module, not results of operators.
        """
        read: set[int] = set()
        waiting = list(self._members)
        while waiting:
            for source in self._graph.sources[waiting.pop()]:
                if source in constants and source not in read:
                    read.add(source)
                    if not self._graph.calls[source].target.startswith(_DEQUANTIZE):
                        waiting.append(source)
        return read

    def _write(self, index: int, *, is_constant: bool) -> None:
        call = self._graph.calls[index]
        role = self._role(index) if is_constant else None
        name = self._name(index, role or self._case.operators[index].name)
        arguments = [self._text(argument, index) for argument in call.arguments]
        arguments += [f"{key}={self._text(value, index)}" for key, value in call.keywords.items()]
        self._lines.append(f"        {name} = {_called(call, arguments)}")
        qparams = self._case.operators[index].quantization
        is_tuple = self._case.operators[index].shape is None  # `getitem` puts its elements on their grids
        if qparams is not None and not is_tuple and not is_constant and not self._floats:
            self._lines.append(f"        {name} = {_on_grid(name, qparams)}")

    def _text(self, encoded: Any, reader: int) -> str:
        """Return the source of an argument; see `qnnsweep.tasks.toolchain.reference.graph.Call`."""
        if isinstance(encoded, list | tuple):
            return f"[{', '.join(self._text(element, reader) for element in encoded)}]"
        if not isinstance(encoded, dict):
            return repr(encoded) if isinstance(encoded, bool | int | str | None) else json.dumps(encoded)
        ((kind, name),) = encoded.items()
        match kind:
            case "operator":
                return self._operand(name, reader)
            case "input":
                return self._model_input(name)
            case "constant":
                return f"self.{self._constant(name, self._replaced.get(name, self._graph.constants[name]).numpy())}"
            case "float":
                return repr(float(name)) if np.isfinite(float(name)) else f'float("{float(name)}")'
            case "device":
                return 'torch.device("cpu")'
            case "dtype" | "memory_format" | "layout" if re.fullmatch(r"\w+", str(name)):
                return f"torch.{name}"
            case _:
                raise EvidenceError(f"the argument {name!r} of an operator cannot be written as Python")

    def _operand(self, source: int, reader: int) -> str:
        if source in self._names:
            return self._names[source]
        value = self._case.run.kernels.call(source, {}) if source in self._case.run.kernels.constants else None
        if value is not None:
            if isinstance(value, tuple):
                raise EvidenceError("a constant tuple cannot be written as Python")
            return f"self.{self._constant(f'value of {source}', np.asarray(value))}"
        received = self._case.run.requantized.get((reader, source))
        value = self._case.run.received.get((reader, source), self._case.run.values.get(source))
        if not isinstance(value, np.ndarray):
            raise EvidenceError(f"the value of {self._case.operators[source].name} is not known")
        qparams = received.qparams if received else self._case.operators[source].quantization
        return self._input(("operator", source, str(qparams)), value, qparams)

    def _model_input(self, position: int) -> str:
        return self._input(
            ("input", position), np.asarray(self._case.inputs[position]), self._case.input_qparams[position]
        )

    def _input(self, key: tuple[object, ...], value: Array, qparams: Quantization | None) -> str:
        if key not in self._inputs:
            name = self._inputs[key] = f"x{len(self._inputs)}"
            self._arrays[name] = value
            if qparams is not None and value.dtype.kind == "f" and not self._floats:
                self._before.append(f"        {name} = {_on_grid(name, qparams)}")
        return self._inputs[key]

    def _constant(self, name: str, value: Array) -> str:
        if name not in self._registered:
            self._registered[name] = registered = f"c{len(self._registered)}"
            self._constants[registered] = value
        return self._registered[name]

    def _role(self, index: int) -> str | None:
        """Return the role of a constant in the layer that reads it; None if no layer reads it directly."""
        for member in self._members:
            call = self._graph.calls[member]
            for role, argument in zip(_ROLES, call.arguments[1:], strict=False):
                if call.target in _LAYERS and argument == {"operator": index}:
                    return role
        return None

    def _name(self, index: int, name: str) -> str:
        plain = re.sub(r"\W", "_", _AFFIXES.sub("", name)) or "value"
        plain = plain if plain[0].isalpha() else f"v{plain}"
        while plain in self._taken or re.fullmatch(r"[cx]\d+", plain):
            plain += "_"
        self._taken.add(plain)
        self._names[index] = plain
        return plain


def _called(call: Call, arguments: Sequence[str]) -> str:
    if call.target == GETITEM:
        return f"{arguments[0]}[{arguments[1]}]"
    if not _TARGET.fullmatch(call.target):
        raise EvidenceError(f"{call.target!r} is no name of an operator")
    return f"torch.ops.{call.target}({', '.join(arguments)})"


def _on_grid(name: str, qparams: Quantization) -> str:
    if len(qparams.scale) != 1 or not re.fullmatch(r"\w+", qparams.dtype):
        raise EvidenceError(f"the grid of {name} has one scale per channel")
    ends = f"{qparams.quant_min}, {qparams.quant_max}, torch.{qparams.dtype}"
    return f"grid({name}, {qparams.scale[0]!r}, {qparams.zero_point[0]}, {ends})"


def described(operators: Sequence[Operator], members: Iterable[int]) -> str:
    """Return the names of operators, in the order of the graph."""
    return ", ".join(operators[index].name for index in sorted(members))


def terminals(case: Case, members: Collection[int]) -> Iterator[int]:
    """Yield the members that no other member reads."""
    read = {source for member in members for source in case.graph.sources[member]}
    yield from (member for member in sorted(members) if member not in read)
