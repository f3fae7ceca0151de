"""A reader of the tensors and times in the ETDump files of ExecuTorch's runtime. It does not import ExecuTorch.

`SCHEMA` is the layout in ExecuTorch's `devtools/etdump/etdump_schema_flatcc.fbs`; a test compares it with that file.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flatbuffers import number_types as flags

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records.logs import LoggedTensor, TimedEvent
from qnnsweep.tasks.toolchain.flatbuffer import Schema, Table, read_root

VERSION = 0
IDENTIFIER = b"ED00"

SCHEMA: Schema = {
    table: tuple(fields.split())
    for table, fields in {
        "Tensor": "scalar_type sizes strides offset",
        "Bool": "bool_val",
        "TensorList": "tensors",
        "Value": "val tensor tensor_list int_value float_value double_value bool_value output",
        "DebugEvent": "chain_index instruction_id debug_entry delegate_debug_id_int delegate_debug_id_str name",
        "ProfileEvent": "name chain_index instruction_id delegate_debug_id_int delegate_debug_id_str "
        "delegate_debug_metadata start_time end_time",
        "AllocationEvent": "allocator_id allocation_size",
        "Event": "profile_event allocation_event debug_event",
        "RunData": "name bundled_input_index allocators events",
        "ETDump": "version run_data",
    }.items()
}

SCALAR_TYPES: dict[int, str] = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool",
    12: "qint8", 13: "quint8", 14: "qint32", 15: "bfloat16", 16: "quint4x2", 17: "quint2x4", 22: "bits16",
    23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
    27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
"""Maps the numbers of ExecuTorch's `ScalarType` to torch's names of the dtypes, without the prefix `torch.`."""

_NUMPY = {
    name: np.dtype(name).newbyteorder("<")
    for name in SCALAR_TYPES.values()
    if name.startswith(("uint", "int", "bool", "float")) and not name.startswith("float8")
}
_KINDS = ("Null", "Int", "Bool", "Float", "Double", "Tensor", "TensorList", "String")
_MAX_DIMENSIONS = 16  # kTensorDimensionLimit in ExecuTorch
_MAX_BYTES = 2**62  # NumPy cannot describe a larger shape


@dataclass(frozen=True, kw_only=True, slots=True)
class ETDump:
    """The tensors and the times of one file, in the file's order. Allocations and logged scalars are left out."""

    tensors: tuple[LoggedTensor, ...]
    events: tuple[TimedEvent, ...]


def read_etdump(data: bytes) -> ETDump:
    """Return the logged tensors and times. Raises EvidenceError if `data` is not a valid ETDump file."""
    root = read_root(data, file_type="ETDump", identifier=IDENTIFIER, schema=SCHEMA, root="ETDump")
    version = root.integer("version", flags.Uint32Flags)
    if version != VERSION:
        raise root.refuse("version", f"is {version}; this reader supports {VERSION}")
    tensors: list[LoggedTensor] = []
    events: list[TimedEvent] = []
    for run, run_data in enumerate(root.tables("run_data", "RunData")):
        run_name = run_data.text("name")
        profile_events, debug_events = _split(run_data)
        timed = [_timed_event(event, run, run_name) for event in profile_events]
        delegate_calls = {(call.chain_index, call.instruction_id) for call in timed if call.name == "DELEGATE_CALL"}
        events += timed
        for event in debug_events:
            tensors += _logged_tensors(event, run, delegate_calls)
    return ETDump(tensors=tuple(tensors), events=tuple(events))


def tensor(logged: LoggedTensor, buffer: memoryview | np.ndarray) -> np.ndarray:
    """Return the logged tensor in its logical shape, as a read-only view into `buffer`.

    `buffer`: the debug buffer of the same ETDump, as contiguous bytes. A bfloat16 tensor is copied to float32 instead,
    because NumPy has no bfloat16. Raises EvidenceError if the tensor reaches outside the buffer, or if NumPy has no
    equivalent of its dtype.
    """
    buffer_bytes = np.frombuffer(buffer, dtype=np.uint8)
    if logged.scalar_type == "bfloat16":
        halves = _view(logged, buffer_bytes, np.dtype("<u2"))
        return (halves.astype(np.uint32) << 16).view(np.float32)
    if logged.scalar_type not in _NUMPY:
        raise EvidenceError(f"{logged.description} has the type {logged.scalar_type}, which NumPy lacks")
    return _view(logged, buffer_bytes, _NUMPY[logged.scalar_type])


def _view(logged: LoggedTensor, buffer_bytes: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    elements = math.prod(logged.shape)
    if elements == 0:
        return np.empty(logged.shape, dtype)
    # The stride of a dimension of size one is never used and may be anything.
    steps = [stride if size > 1 else 0 for size, stride in zip(logged.shape, logged.strides, strict=True)]
    last = sum((size - 1) * step for size, step in zip(logged.shape, steps, strict=True))
    end = logged.offset + (last + 1) * dtype.itemsize
    # The second condition rejects elements that share memory. Otherwise a few bytes could be a tensor of any size.
    if end > buffer_bytes.size or logged.offset + elements * dtype.itemsize > buffer_bytes.size:
        raise EvidenceError(
            f"{logged.description}, {logged.scalar_type} of shape {list(logged.shape)} and strides "
            f"{list(logged.strides)} at byte {logged.offset}, reaches outside the debug buffer of "
            f"{buffer_bytes.size} bytes"
        )
    view = np.ndarray(logged.shape, dtype, buffer_bytes, logged.offset, [step * dtype.itemsize for step in steps])
    view.flags.writeable = False
    return view


def _split(run_data: Table) -> tuple[list[Table], list[Table]]:
    """Return the profiling events and the debug events of a run."""
    profile_events: list[Table] = []
    debug_events: list[Table] = []
    for event in run_data.tables("events", "Event"):
        profile = event.table("profile_event", "ProfileEvent")
        allocation = event.table("allocation_event", "AllocationEvent")
        debug = event.table("debug_event", "DebugEvent")
        if [profile, allocation, debug].count(None) != 2:
            raise event.refuse("profile_event", "an event is exactly one of profile, allocation and debug event")
        if profile is not None:
            profile_events.append(profile)
        elif debug is not None:
            debug_events.append(debug)
    return profile_events, debug_events


def _timed_event(event: Table, run: int, run_name: str | None) -> TimedEvent:
    return TimedEvent(
        run=run,
        run_name=run_name,
        name=event.text("name"),
        chain_index=event.integer("chain_index", flags.Int32Flags),
        instruction_id=event.integer("instruction_id", flags.Int32Flags, -1),
        delegate_identifier=_delegate_identifier(event),
        metadata=event.octets("delegate_debug_metadata"),
        start=event.integer("start_time", flags.Uint64Flags),
        end=event.integer("end_time", flags.Uint64Flags),
    )


def _delegate_identifier(event: Table) -> str | None:
    """Return the name, or else the decimal number, that the delegate gave an event; None if it gave neither."""
    name = event.text("delegate_debug_id_str")
    number = event.integer("delegate_debug_id_int", flags.Int32Flags, -1)  # -1 means "none" in the schema
    return name if name is not None or number == -1 else str(number)


def _logged_tensors(event: Table, run: int, delegate_calls: set[tuple[int, int]]) -> list[LoggedTensor]:
    """Return the tensors of one debug event: one tensor, the tensors of a list, or none for a scalar."""
    entry = _required_table(event, "debug_entry", "Value")
    chain_index = event.integer("chain_index", flags.Uint64Flags)
    chain_index -= 2**64 if chain_index >= 2**63 else 0  # the runtime writes -1, but the schema is unsigned
    instruction_id = event.integer("instruction_id", flags.Int32Flags, -1)
    delegate_identifier = _delegate_identifier(event)
    output = entry.table("output", "Bool")
    kind_code = entry.integer("val", flags.Int8Flags)
    if not 0 <= kind_code < len(_KINDS):
        raise entry.refuse("val", f"{kind_code} is not a ValueType")
    kind = _KINDS[kind_code]

    logged = partial(
        LoggedTensor,
        run=run,
        chain_index=chain_index,
        instruction_id=instruction_id,
        delegate_identifier=delegate_identifier,
        name=event.text("name"),
        is_output=output is not None and bool(output.number("bool_val", flags.BoolFlags)),
        delegate_argument=delegate_identifier is None and (chain_index, instruction_id) in delegate_calls,
    )
    if kind == "Tensor":
        return [logged(**_tensor_fields(_required_table(entry, "tensor", "Tensor")), list_index=None)]
    if kind == "TensorList":
        tensors = _required_table(entry, "tensor_list", "TensorList").tables("tensors", "Tensor")
        return [logged(**_tensor_fields(table), list_index=index) for index, table in enumerate(tensors)]
    return []


def _required_table(table: Table, field: str, name: str) -> Table:
    child = table.table(field, name)
    if child is None:
        raise table.refuse(field, "is missing")
    return child


def _tensor_fields(table: Table) -> dict[str, Any]:
    """Return the checked scalar type, shape, strides and offset of a tensor. The buffer's size is not checked here."""
    code = table.integer("scalar_type", flags.Int8Flags)
    if code not in SCALAR_TYPES:
        raise table.refuse("scalar_type", f"{code} is not a ScalarType")
    shape = table.integers("sizes", flags.Int64Flags)
    strides = table.integers("strides", flags.Int64Flags)
    offset = table.integer("offset", flags.Int64Flags)
    if len(shape) > _MAX_DIMENSIONS:
        raise table.refuse("sizes", f"{len(shape)} dimensions; ExecuTorch has at most {_MAX_DIMENSIONS}")
    if len(strides) != len(shape):
        raise table.refuse("strides", f"{len(strides)} strides for {len(shape)} dimensions")
    if min(shape, default=0) < 0 or 8 * math.prod(max(size, 1) for size in shape) > _MAX_BYTES:
        raise table.refuse("sizes", f"{list(shape)} is not a shape")
    if min(strides, default=0) < 0:
        raise table.refuse("strides", f"{list(strides)}: torch has no negative strides")
    if offset < 0 and 0 not in shape:  # an empty tensor occupies no bytes, and ExecuTorch writes -1 as its offset
        raise table.refuse("offset", f"{offset} is before the debug buffer")
    return {"scalar_type": SCALAR_TYPES[code], "shape": shape, "strides": strides, "offset": offset}
