"""A reader of ExecuTorch's programs (`.pte`), which checks every offset. It does not import ExecuTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.toolchain.backends.delegate import CompiledDelegate, CompileSpec
from qnnsweep.tasks.toolchain.fbs import layout
from qnnsweep.tasks.toolchain.readback.etdump import SCALAR_TYPES

LAYOUT = "schema/program.fbs"
_FILE_TYPE = "program (.pte)"
_IDENTIFIER = b"ET12"
_BOXED = ("IntList", "TensorList", "OptionalTensorList")
_HEADER, _HEADER_MAGIC = slice(8, 32), b"eh00"


@dataclass(frozen=True, kw_only=True, slots=True)
class PteTensor:
    """A tensor of a method. `data`: the bytes of a constant; None for another tensor or if they are in another file."""

    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    name: str | None
    is_constant: bool
    data: memoryview | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PteInstruction:
    """An instruction. `target`: its operator, or the backend of the delegate with the number `delegate`."""

    target: str
    is_kernel: bool
    delegate: int | None
    arguments: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PteMethod:
    """A method. `values` has tensors, scalars, lists and None; arguments, inputs and outputs are positions in it."""

    name: str
    values: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[PteInstruction, ...]
    delegates: tuple[CompiledDelegate, ...]
    buffer_bytes: int

    def tensors(self, positions: Sequence[int]) -> list[PteTensor]:
        """Return the values at `positions` that are tensors."""
        return [value for position in positions if isinstance(value := self.values[position], PteTensor)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pte:
    """A program. `named_data`: bytes that delegates and constants share, by key."""

    methods: tuple[PteMethod, ...]
    named_data: Mapping[str, memoryview]

    def method(self, name: str) -> PteMethod:
        """Return a method. Raises EvidenceError if there is none of this name."""
        found = next((method for method in self.methods if method.name == name), None)
        if found is None:
            raise EvidenceError(f"the program has no method {name}; it has {[method.name for method in self.methods]}")
        return found


def read_pte(data: bytes) -> Pte:
    """Return the contents of a program. Raises EvidenceError if `data` is not a valid program."""
    header, size, base = data[_HEADER], len(data), len(data)
    if header[:4] == _HEADER_MAGIC:
        size, base = (int.from_bytes(header[at : at + 8], "little") for at in (8, 16))
        if max(size, base) > len(data):
            raise _refusal(f"its header announces {max(size, base)} bytes, {len(data)} are present; it was cut short")
    read = layout(LAYOUT).read(data[:size], "Program", file_type=_FILE_TYPE, identifier=_IDENTIFIER)
    return _Program(read, memoryview(data)[base:]).contents()


@dataclass(frozen=True, slots=True)
class _Boxed:
    """A list whose elements are other values."""

    positions: tuple[int, ...]


class _Program:
    def __init__(self, read: dict[str, Any], segments: memoryview) -> None:
        self._read = read
        self._segments = [_part(segments, segment["offset"], segment["size"]) for segment in read["segments"]]
        self._constants = self._constant_data()

    def contents(self) -> Pte:
        methods = tuple(self._method(plan) for plan in self._read["execution_plan"])
        if not methods or len({method.name for method in methods}) < len(methods):
            raise _refusal("it has no methods, or two methods of one name")
        named = {
            data["key"] or "": _at(self._segments, data["segment_index"], "segment")
            for data in self._read["named_data"]
        }
        return Pte(methods=methods, named_data=named)

    def _method(self, plan: dict[str, Any]) -> PteMethod:
        unboxed = [self._value(value["val"]) for value in plan["values"]]
        values = tuple(
            tuple(None if at < 0 else _at(unboxed, at, "value") for at in value.positions)
            if isinstance(value, _Boxed)
            else value
            for value in unboxed
        )
        operators = [f"{operator['name']}.{operator['overload'] or 'default'}" for operator in plan["operators"]]
        delegates = tuple(self._delegate(delegate) for delegate in plan["delegates"])
        calls = [instruction["instr_args"] for chain in plan["chains"] for instruction in chain["instructions"]]
        if None in calls:
            raise _refusal("an instruction is missing")
        instructions = tuple(_instruction(call, operators, delegates) for call in calls)
        arguments = (position for instruction in instructions for position in instruction.arguments)
        for position in (*plan["inputs"], *plan["outputs"], *arguments):
            _at(values, position, "value")
        return PteMethod(
            name=plan["name"] or "",
            values=values,
            inputs=plan["inputs"],
            outputs=plan["outputs"],
            instructions=instructions,
            delegates=delegates,
            buffer_bytes=sum(plan["non_const_buffer_sizes"]),
        )

    def _value(self, value: tuple[str, dict[str, Any]] | None) -> Any:
        if value is None or value[0] == "Null":
            return None
        kind, fields = value
        if kind != "Tensor":
            (scalar,) = fields.values()
            return _Boxed(scalar) if kind in _BOXED else scalar
        extra = fields["extra_tensor_info"] or {}
        buffer, is_external = fields["data_buffer_idx"], extra.get("location") == "EXTERNAL"
        is_constant = fields["allocation_info"] is None and (buffer > 0 or is_external)
        return PteTensor(
            dtype=_DTYPES[fields["scalar_type"]],
            shape=fields["sizes"],
            dim_order=tuple(fields["dim_order"]),
            name=extra.get("fully_qualified_name") or None,
            is_constant=is_constant,
            data=_at(self._constants, buffer, "constant") if is_constant and not is_external else None,
        )

    def _delegate(self, delegate: dict[str, Any]) -> CompiledDelegate:
        place = delegate["processed"]
        if place is None:
            raise _refusal("a delegate is missing")
        if place["location"] == "SEGMENT":
            processed = bytes(_at(self._segments, place["index"], "segment"))
        else:
            processed = _at(self._read["backend_delegate_data"], place["index"], "delegate's data")["data"]
        specs = tuple(CompileSpec(key=spec["key"] or "", value=spec["value"]) for spec in delegate["compile_specs"])
        return CompiledDelegate(id=delegate["id"] or "", compile_specs=specs, processed=processed)

    def _constant_data(self) -> list[memoryview]:
        """Return the data of the constants by their numbers. The first number stands for no constant."""
        place = self._read["constant_segment"]
        if place is None or not place["offsets"]:
            return [memoryview(buffer["storage"]) for buffer in self._read["constant_buffer"]]
        segment = _at(self._segments, place["segment_index"], "segment")
        ends = [*place["offsets"][1:], len(segment)]
        return [_part(segment, start, end - start) for start, end in zip(place["offsets"], ends, strict=True)]


_DTYPES = {name: SCALAR_TYPES[code] for code, name in layout(LAYOUT).enums["ScalarType"].items()}


def _instruction(
    member: tuple[str, dict[str, Any]], operators: Sequence[str], delegates: Sequence[CompiledDelegate]
) -> PteInstruction:
    kind, call = member
    target, delegate = kind, call.get("delegate_index")
    if kind == "KernelCall":
        target = _at(operators, call["op_index"], "operator")
    elif delegate is not None:
        target = _at(delegates, delegate, "delegate").id
    return PteInstruction(
        target=target, is_kernel=kind == "KernelCall", delegate=delegate, arguments=call.get("args", ())
    )


def _part(data: memoryview, start: int, size: int) -> memoryview:
    if not 0 <= start <= start + size <= len(data):
        raise _refusal(f"{size} bytes at {start} of {len(data)} bytes of data; it was cut short")
    return data[start : start + size]


def _at(items: Sequence[Any], index: int, noun: str) -> Any:
    if not 0 <= index < len(items):
        raise _refusal(f"there is no {noun} {index}")
    return items[index]


def _refusal(problem: str) -> EvidenceError:
    return EvidenceError(f"not a readable {_FILE_TYPE}: {problem}")
