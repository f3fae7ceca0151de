"""A writer of ETDump files, so that the log of another runtime is read and checked like ExecuTorch's.

It runs on devices, where only the packages of ONNX Runtime are installed. The layout is that of ExecuTorch's
`devtools/etdump/etdump_schema_flatcc.fbs`; a field is named there by its position in its table.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers

from qnnsweep.tasks.toolchain.runner import SCALAR_TYPES

_ALIGNMENT = 64
_CODES = {name: code for code, name in SCALAR_TYPES.items()}
_TENSOR = 5
"""ValueType.Tensor."""


class FullBufferError(Exception):
    """The logged tensors do not fit into the debug buffer."""


class Log:
    """The log of a program: its inferences, their times, and the tensors that were logged."""

    def __init__(self, buffer: Path | None, limit: int, *, is_here: bool = True) -> None:
        """Begin a log. `buffer`: the file for the logged tensors, of at most `limit` bytes; None: they are not kept.

        `is_here`: whether the device of the inferences has this clock. Otherwise the times in the log are 0.
        """
        self._buffer = None if buffer is None else buffer.open("wb")
        self._limit = limit
        self._is_here = is_here
        self._builder = flatbuffers.Builder(1024)
        self._events: list[int] = []
        self._runs: list[int] = []
        self._start = 0

    def begin(self) -> None:
        """Begin an inference."""
        self._events = []
        self._start = time.monotonic_ns()

    def end(self) -> None:
        """End an inference."""
        self._timed("Method::execute", -1, 0, self._start, time.monotonic_ns())
        self._end_run("Execute")

    def call(self, name: str, instruction: int, start_ns: int, end_ns: int) -> None:
        """Log the time of a call. `name`: DELEGATE_CALL or OPERATOR_CALL."""
        self._timed(name, 0, instruction, start_ns, end_ns)

    def tensor(
        self, array: Any, *, chain: int, instruction: int, name: str | None = None, output: bool = False
    ) -> None:
        """Log a tensor; see `qnnsweep.tasks.records.logs.LoggedTensor`. Raises FullBufferError."""
        if self._buffer is None:
            return
        self._buffer.write(bytes(-self._buffer.tell() % _ALIGNMENT))
        offset, data = self._buffer.tell(), array.tobytes()
        if offset + len(data) > self._limit:
            self._buffer.close()
            # ExecuTorch's runtime says this too.
            raise FullBufferError("Ran out of space to store intermediate outputs.")
        self._buffer.write(data)
        sizes, strides = list(array.shape), [1] * array.ndim
        for axis in reversed(range(array.ndim - 1)):
            strides[axis] = strides[axis + 1] * sizes[axis + 1]
        build = self._builder
        fields = [self._longs(sizes), self._longs(strides)]
        build.StartObject(4)
        build.PrependInt8Slot(0, _CODES[str(array.dtype)], 0)
        build.PrependUOffsetTRelativeSlot(1, fields[0], 0)
        build.PrependUOffsetTRelativeSlot(2, fields[1], 0)
        build.PrependInt64Slot(3, offset, 0)
        described = build.EndObject()
        build.StartObject(1)
        build.PrependBoolSlot(0, output, False)
        is_output = build.EndObject()
        build.StartObject(8)
        build.PrependInt8Slot(0, _TENSOR, 0)
        build.PrependUOffsetTRelativeSlot(1, described, 0)
        if output:
            build.PrependUOffsetTRelativeSlot(7, is_output, 0)
        value = build.EndObject()
        identifier = 0 if name is None else build.CreateString(name)
        build.StartObject(6)
        build.PrependUint64Slot(0, chain % 2**64, 0)
        build.PrependInt32Slot(1, instruction, -1)
        build.PrependUOffsetTRelativeSlot(2, value, 0)
        build.PrependUOffsetTRelativeSlot(4, identifier, 0)
        self._event(2, build.EndObject())

    def write(self, file: Path) -> None:
        """Write the file. No further inference can be logged."""
        if self._buffer is not None:
            self._buffer.close()
        build, runs = self._builder, self._offsets(self._runs)
        build.StartObject(2)
        build.PrependUOffsetTRelativeSlot(1, runs, 0)
        build.FinishSizePrefixed(build.EndObject(), file_identifier=b"ED00")
        file.write_bytes(build.Output())

    def _timed(self, name: str, chain: int, instruction: int, start: int, end: int) -> None:
        build = self._builder
        text = build.CreateString(name)
        build.StartObject(8)
        build.PrependUOffsetTRelativeSlot(0, text, 0)
        build.PrependInt32Slot(1, chain, 0)
        build.PrependInt32Slot(2, instruction, -1)
        if self._is_here:
            build.PrependUint64Slot(6, start, 0)
            build.PrependUint64Slot(7, end, 0)
        self._event(0, build.EndObject())

    def _event(self, slot: int, event: int) -> None:
        self._builder.StartObject(3)
        self._builder.PrependUOffsetTRelativeSlot(slot, event, 0)
        self._events.append(self._builder.EndObject())

    def _end_run(self, name: str) -> None:
        build, events, text = self._builder, self._offsets(self._events), self._builder.CreateString(name)
        build.StartObject(4)
        build.PrependUOffsetTRelativeSlot(0, text, 0)
        build.PrependUOffsetTRelativeSlot(3, events, 0)
        self._runs.append(build.EndObject())

    def _longs(self, numbers: Sequence[int]) -> int:
        self._builder.StartVector(8, len(numbers), 8)
        for number in reversed(numbers):
            self._builder.PrependInt64(number)
        return self._builder.EndVector()

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return self._builder.EndVector()
