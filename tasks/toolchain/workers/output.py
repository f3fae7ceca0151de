"""The log of a worker: its beginning and its end, in memory that the worker shares with its guard.

Everything that a worker prints goes through a pipe to its guard, which writes it into the log. Therefore a worker that
prints without end fills neither memory nor disk.
"""

import ctypes
import mmap
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from qnnsweep.conf.units import MIB

DUMP = signal.SIGUSR1
"""The signal that makes a worker or a fork server write the stacks of its threads to its log."""
LOG_BYTES = 8 * MIB
"""How much of a log is stored: the first half and the last half of this number of bytes."""
_COUNT_BYTES = 8


class SharedLog:
    """The first and the last part of an output. The forks of the process that creates it share it."""

    def __init__(self, limit_bytes: int = LOG_BYTES) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._memory = mmap.mmap(-1, _COUNT_BYTES + limit_bytes)

    @property
    def length(self) -> int:
        """The length of the whole output, in bytes."""
        return int.from_bytes(self._memory[:_COUNT_BYTES], "little")

    def add(self, data: bytes) -> None:
        """Append the next part of the output."""
        position, rest = self.length, memoryview(data)
        while rest:
            offset, room = self._place(position)
            part, rest = rest[:room], rest[room:]
            self._memory[offset : offset + len(part)] = part
            position += len(part)
        self._memory[:_COUNT_BYTES] = position.to_bytes(_COUNT_BYTES, "little")

    def since(self, start: int) -> bytes:
        """Return the output from byte `start` on. If a part of it was dropped, a line in its place says so."""
        length = self.length
        tail_start = max(self._head_bytes, length - self._tail_bytes)
        head = self._read(start, min(length, self._head_bytes))
        tail = self._read(max(start, tail_start), length)
        dropped = tail_start - max(start, self._head_bytes)
        if dropped <= 0:
            return head + tail
        return head + f"\n[qnnsweep: {dropped} bytes of this log were dropped here]\n".encode() + tail

    def _read(self, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        while start < stop:
            offset, room = self._place(start)
            parts.append(self._memory[offset : offset + min(room, stop - start)])
            start += len(parts[-1])
        return b"".join(parts)

    def _place(self, position: int) -> tuple[int, int]:
        """Return where byte `position` of the output is in the memory, and how many bytes can follow there."""
        if position < self._head_bytes:
            return _COUNT_BYTES + position, self._head_bytes - position
        offset = (position - self._head_bytes) % self._tail_bytes
        return _COUNT_BYTES + self._head_bytes + offset, self._tail_bytes - offset


@dataclass(frozen=True, slots=True)
class WorkersLog:
    """The log of this process. `guard`: a connection; the guard answers a byte when the log is complete."""

    log: SharedLog
    guard: Connection

    def synchronize(self) -> None:
        """Wait until all output of this process is in the log."""
        flush_native_output()
        os.write(self.guard.fileno(), b"?")
        os.read(self.guard.fileno(), 1)


_this_process: list[WorkersLog] = []


def set_log(log: WorkersLog) -> None:
    """Set the log of this process."""
    _this_process[:] = [log]


def output_length() -> int:
    """Return how many bytes this worker has printed."""
    (workers,) = _this_process
    workers.synchronize()
    return workers.log.length


def output_since(start: int) -> str:
    """Return what this worker has printed from byte `start` on."""
    (workers,) = _this_process
    workers.synchronize()
    return workers.log.since(start).decode(errors="replace")


def flush_native_output() -> None:
    """Flush Python's and C's stdout. C's stdout buffers native code's output, and a fork exits without flushing it."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
