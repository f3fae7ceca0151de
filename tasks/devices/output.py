"""The output of a command on a device. A device may print any amount of output, so only a limited amount is stored."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from qnnsweep.conf.units import MIB

LIMIT_BYTES = 8 * MIB
"""How much of a stream is stored."""
_CHUNK_BYTES = 2**20  # the maximum capacity of a pipe, so that one read empties it
_CHECK_S = 0.2


class BoundedOutput:
    """The first and the last 4 MiB of a stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        """Append the next part of the stream."""
        room = LIMIT_BYTES // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = max(0, len(self._tail) - LIMIT_BYTES // 2)
        del self._tail[:excess]
        self.dropped_bytes += excess

    def end(self, count: int) -> bytes:
        """Return the last `count` bytes, which may be fewer if the stream is short."""
        return bytes((self._head[-count:] + self._tail[-count:])[-count:])

    def bytes(self) -> bytes:
        """Return the stream. If a part of it was dropped, a line in its place says so."""
        if not self.dropped_bytes:
            return bytes(self._head + self._tail)
        notice = f"\n[qnnsweep: {self.dropped_bytes} bytes of this output were dropped here]\n"
        return bytes(self._head) + notice.encode() + bytes(self._tail)


class ProcessOutput:
    """The two outputs of a process on this machine, which are pipes."""

    def __init__(self, stdout: int, stderr: int, ended: int) -> None:
        """`stdout`, `stderr`: the descriptors of the pipes. `ended`: a descriptor that is readable after the end."""
        self.stdout, self.stderr = BoundedOutput(), BoundedOutput()
        self._open = {stdout: self.stdout, stderr: self.stderr}
        self._ended = ended

    @classmethod
    @contextmanager
    def of(cls, process: subprocess.Popen[bytes]) -> Generator["ProcessOutput"]:
        """Yield the outputs of a process that was started by this process, with pipes for both outputs."""
        assert process.stdout is not None
        assert process.stderr is not None
        ended = os.pidfd_open(process.pid)
        try:
            yield cls(process.stdout.fileno(), process.stderr.fileno(), ended)
        finally:
            os.close(ended)

    def read_until_end(self, deadline_s: float, check: Callable[[], None] = lambda: None) -> bool:
        """Read until the process ends. Return False if it has not ended after `deadline_s` seconds.

        The end of the pipes is not awaited, because another process may hold them open.
        `check`: called several times a second; an error that it raises is passed on.
        """
        latest = time.monotonic() + deadline_s
        while True:
            poller = select.poll()
            for descriptor in (self._ended, *self._open):
                poller.register(descriptor, select.POLLIN)
            remaining_s = latest - time.monotonic()
            ready = {descriptor for descriptor, _ in poller.poll(max(0.0, min(remaining_s, _CHECK_S)) * 1000)}
            for descriptor in ready - {self._ended}:
                self._read(descriptor)
            if self._ended in ready:
                self._read_rest()
                return True
            if remaining_s <= 0:
                return False
            check()

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, _CHUNK_BYTES)
        if data:
            self._open[descriptor].add(data)
        else:
            del self._open[descriptor]

    def _read_rest(self) -> None:
        for descriptor in list(self._open):
            if select.select([descriptor], [], [], 0)[0]:
                self._read(descriptor)
