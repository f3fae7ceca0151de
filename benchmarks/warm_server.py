"""The toolchain's fork server as a fork of a process that has made its imports, which take seconds of every sweep.

A fork that is made before the program has threads waits until the program starts its fork server, and then becomes it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
from multiprocessing import util
from typing import Any

WAITING = "waiting-server"
"""The name of a process that waits. A sweep without the benchmark has no such process."""
_PR_SET_NAME = 15
_HIGH = 200
"""More than the descriptors that the program passes."""
_LONGEST = 1 << 20


def offer() -> None:
    """Fork the process that becomes the fork server of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _wait(theirs)
        os._exit(0)
    theirs.close()
    spawn = util.spawnv_passfds

    def spawn_warm(path: bytes, arguments: list[str], descriptors: list[int]) -> int:
        if "multiprocessing.forkserver" not in arguments[-1] or ours.fileno() < 0:
            return spawn(path, arguments, descriptors)
        message = json.dumps({"command": arguments[-1], "numbers": descriptors, "environment": dict(os.environ)})
        with ours:
            socket.send_fds(ours, [message.encode()], descriptors)
        return pid

    util.spawnv_passfds = spawn_warm


def _wait(connection: socket.socket) -> None:
    """Become the fork server when the program asks for it. Return when the program has ended before."""
    _set_name(WAITING)
    with connection:
        text, received, _, _ = socket.recv_fds(connection, _LONGEST, 8)
    if not text:
        return
    _set_name("python")
    message: dict[str, Any] = json.loads(text)
    raised = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in received]
    for descriptor, number in zip(raised, message["numbers"], strict=True):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(message["environment"])
    from qnnsweep.tasks.toolchain.workers.server import end_with_caller

    end_with_caller()
    exec(message["command"], {})  # noqa: S102 - the command of multiprocessing
    raise SystemExit


def _set_name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
