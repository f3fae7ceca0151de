"""What a `.pte` file holds, read from its bytes without importing ExecuTorch: inputs, outputs and delegates.

The layout is `schema/program.fbs` of ExecuTorch; a test compares `SCHEMA` with the installed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatbuffers import number_types as flags

from tasks.errors import EvidenceError
from tasks.program_facts import ProgramTensor
from tasks.toolchain.etdump import SCALAR_TYPES
from tasks.toolchain.flatbuffer import Schema, Table, read_plain_root

IDENTIFIER = b"ET12"

SCHEMA: Schema = {
    "Tensor": (
        "scalar_type",
        "storage_offset",
        "sizes",
        "dim_order",
        "requires_grad",
        "data_buffer_idx",
        "allocation_info",
        "layout",
        "shape_dynamism",
        "extra_tensor_info",
    ),
    "EValue": ("val_type", "val"),
    "DelegateCall": ("delegate_index", "args"),
    "Instruction": ("instr_args_type", "instr_args"),
    "BackendDelegateDataReference": ("location", "index"),
    "CompileSpec": ("key", "value"),
    "BackendDelegate": ("id", "processed", "compile_specs"),
    "Chain": ("inputs", "outputs", "instructions", "stacktrace"),
    "ExecutionPlan": (
        "name",
        "container_meta_type",
        "values",
        "inputs",
        "outputs",
        "chains",
        "operators",
        "delegates",
        "non_const_buffer_sizes",
        "non_const_buffer_device",
    ),
    "BackendDelegateInlineData": ("data",),
    "DataSegment": ("offset", "size"),
    "Program": (
        "version",
        "execution_plan",
        "constant_buffer",
        "backend_delegate_data",
        "segments",
        "constant_segment",
        "mutable_data_segments",
        "named_data",
    ),
}
"""Table to fields in the schema's order; a union is stored as two, its type first."""

# Places in the unions KernelTypes and InstructionArguments, counted from 1.
_TENSOR = 5
_KERNEL_CALL, _DELEGATE_CALL = 1, 2

_HEADER = slice(8, 40)
_HEADER_MAGIC = b"eh00"
_HEADER_BYTES = 32
_INLINE, _SEGMENT = 0, 1
_METHOD = "forward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegate:
    """One delegated subgraph: who runs it, what it was compiled with, and what the backend made of it."""

    backend: str
    compile_specs: dict[str, bytes]
    processed: bytes
    calls: int
    """How many instructions of the program call it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The method `forward` of one file."""

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    delegates: tuple[Delegate, ...]
    kernel_calls: int


def read_program(data: bytes) -> Program:
    """Raises EvidenceError for bytes that are no sound program with a method `forward` of tensors."""
    flatbuffer, segments_at = _parts(data)
    root = read_plain_root(
        flatbuffer, file_type="ExecuTorch program", identifier=IDENTIFIER, schema=SCHEMA, root="Program"
    )
    plans = [plan for plan in root.tables("execution_plan", "ExecutionPlan") if plan.text("name") == _METHOD]
    if len(plans) != 1:
        raise root.refuse("execution_plan", f"has {len(plans)} methods named {_METHOD}")
    (plan,) = plans
    values = list(plan.tables("values", "EValue"))
    kernel_calls, called = _calls(plan)
    processed = _Processed(root, data, segments_at)
    return Program(
        inputs=tuple(_tensors(plan, "inputs", values)),
        outputs=tuple(_tensors(plan, "outputs", values)),
        delegates=tuple(
            Delegate(
                backend=delegate.text("id") or "",
                compile_specs=_compile_specs(delegate),
                processed=processed.of(delegate),
                calls=called.count(index),
            )
            for index, delegate in enumerate(plan.tables("delegates", "BackendDelegate"))
        ),
        kernel_calls=kernel_calls,
    )


def _calls(plan: Table) -> tuple[int, list[int]]:
    """How many kernels are called, and the delegate of each delegate call."""
    kernels = 0
    delegates: list[int] = []
    for chain in plan.tables("chains", "Chain"):
        for instruction in chain.tables("instructions", "Instruction"):
            kind = instruction.integer("instr_args_type", flags.Uint8Flags)
            kernels += kind == _KERNEL_CALL
            call = instruction.table("instr_args", "DelegateCall") if kind == _DELEGATE_CALL else None
            if call is not None:
                delegates.append(call.integer("delegate_index", flags.Int32Flags))
    return kernels, delegates


def _compile_specs(delegate: Table) -> dict[str, bytes]:
    specs = delegate.tables("compile_specs", "CompileSpec")
    return {spec.text("key") or "": spec.octets("value") for spec in specs}


def _parts(data: bytes) -> tuple[bytes, int | None]:
    """The flatbuffer, and where the segments behind it begin; None if there are none."""
    header = data[_HEADER]
    if header[:4] != _HEADER_MAGIC or len(header) < _HEADER_BYTES:
        return data, None
    size, segments = (int.from_bytes(header[start : start + 8], "little") for start in (8, 16))
    if size > len(data) or segments > len(data):
        raise EvidenceError(
            f"not a readable ExecuTorch program: its header tells of {size} bytes and segments at {segments}, "
            f"{len(data)} bytes are present; it was cut short"
        )
    return data[:size], segments or None


def _tensors(plan: Table, field: str, values: Sequence[Table]) -> Iterator[ProgramTensor]:
    for position in plan.integers(field, flags.Int32Flags):
        if not 0 <= position < len(values):
            raise plan.refuse(field, f"value {position} of {len(values)}")
        value = values[position]
        kind = value.integer("val_type", flags.Uint8Flags)
        tensor = value.table("val", "Tensor") if kind == _TENSOR else None
        if tensor is None:
            raise plan.refuse(field, f"value {position} is no tensor")
        code = tensor.integer("scalar_type", flags.Int8Flags)
        if code not in SCALAR_TYPES:
            raise tensor.refuse("scalar_type", f"{code} is no ScalarType")
        yield ProgramTensor(
            shape=tensor.integers("sizes", flags.Int32Flags),
            dtype=SCALAR_TYPES[code],
            dim_order=tensor.integers("dim_order", flags.Uint8Flags),
        )


class _Processed:
    """Where the delegates' own bytes are: in the flatbuffer, or in a segment behind it."""

    def __init__(self, root: Table, data: bytes, segments_at: int | None) -> None:
        self._data = data
        self._segments_at = segments_at
        self._inline = list(root.tables("backend_delegate_data", "BackendDelegateInlineData"))
        self._segments = list(root.tables("segments", "DataSegment"))

    def of(self, delegate: Table) -> bytes:
        reference = delegate.table("processed", "BackendDelegateDataReference")
        if reference is None:
            raise delegate.refuse("processed", "is missing")
        location = reference.integer("location", flags.Int8Flags)
        index = reference.integer("index", flags.Uint32Flags)
        if location == _INLINE and index < len(self._inline):
            return self._inline[index].octets("data")
        if location != _SEGMENT or index >= len(self._segments) or self._segments_at is None:
            raise delegate.refuse("processed", f"{index} at location {location} is not in the file")
        segment = self._segments[index]
        start = self._segments_at + segment.integer("offset", flags.Uint64Flags)
        size = segment.integer("size", flags.Uint64Flags)
        if start + size > len(self._data):
            raise segment.refuse("size", f"{size} bytes at {start} are outside the file's {len(self._data)}")
        return self._data[start : start + size]
