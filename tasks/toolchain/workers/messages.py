"""The messages between a caller, the guard of a call, and the process that runs the call.

The process sends one `Answer` to the caller. The guard sends `Started`, `LogSoFar` for each `Request.LOG`, and `Ended`.
Messages are pickled and sent through pipes. Foreign code in the process may write to these pipes too. Therefore a
receiver never waits for the rest of a message, and accepts only messages of a limited size.
"""

import math
import os
import select
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

from qnnsweep.conf.units import GIB, MIB
from qnnsweep.tasks.errors import QnnsweepError

_LENGTH = struct.Struct("!Q")
_MOST_BYTES = GIB
_CHUNK_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Started:
    """The first message of a guard, which contains the guard's process id."""

    pid: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that the function returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """An error about the request, the environment or evidence, which the caller raises unchanged."""

    error: QnnsweepError


@dataclass(frozen=True, slots=True)
class Raised:
    """The name and the text of any other error. The error itself is not sent: it might not survive pickling."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class LogSoFar:
    """The log of a process that still runs."""

    log: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the process, and its log. The exit code is negative for a signal; None if it is unknown."""

    exit_code: int | None
    log: bytes


class Request(Enum):
    """What a caller asks of a guard. If the caller closes the connection, the guard ends the call without a message."""

    LOG = "send the log"
    DUMP = "make the process write the stacks of its threads to the log"
    END = "end the call, and send its log"


Answer = Returned | Refused | Raised
Message = Answer | Ended


class Unreadable(Exception):
    """What was received is not a message."""


def send(connection: Connection, message: object, until: float = math.inf) -> None:
    """Send one message. Raises OSError if the receiver has ended, or does not read until the monotonic time `until`."""
    data = dumps(message)
    for part in (_LENGTH.pack(len(data)), data):
        rest = memoryview(part)
        while rest:
            try:
                rest = rest[os.write(connection.fileno(), rest) :]
            except BlockingIOError:
                _wait_for_room(connection, until)


def _wait_for_room(connection: Connection, until: float) -> None:
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLOUT)
    if not poller.poll(None if until == math.inf else max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError("the receiver of a message does not read it")


def dumps(message: object) -> bytes:
    """Return a message as bytes: like `Connection.send`."""
    return bytes(ForkingPickler.dumps(message))


def loads(data: bytes) -> Any:
    """Return the message that `dumps` made: like `Connection.recv`."""
    return cast(Any, ForkingPickler).loads(data)


class Receiver:
    """The receiving end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.at_end = False
        """Whether no further bytes can arrive."""
        self._received = bytearray()
        os.set_blocking(connection.fileno(), False)

    def receive(self) -> object | None:
        """Return the next message; None if no complete message has arrived. Raises Unreadable. Never waits."""
        while (end := self._end()) is None or len(self._received) < end:
            if not self._read():
                return None
        data = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        try:
            return loads(data)
        except Exception as error:  # foreign code may have written anything
            raise Unreadable(f"{type(error).__name__}: {error}") from error

    def _end(self) -> int | None:
        """Return the length of the next message with its header; None if its header is incomplete."""
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > _MOST_BYTES:
            raise Unreadable(f"{length} bytes announced")
        return _LENGTH.size + length

    def _read(self) -> bool:
        """Read what has arrived. Return whether there was anything."""
        data = b""
        with suppress(BlockingIOError):
            try:
                data = os.read(self.connection.fileno(), _CHUNK_BYTES)
                self.at_end = not data
            except ConnectionError:
                self.at_end = True
        self._received += data
        return bool(data)

    def close(self) -> None:
        self.connection.close()
