"""The code that runs in a worker process: its call, and its answer.

A worker is forked from a fork server for one call. A zygote is a worker that stays alive after its call. It serves
requests like a fork server, and its forks run later calls, which need the value that the zygote's call returned. A
guard (`guard.py`) is the parent of every worker and of every fork.
"""

import gc
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError, MachineFault, RequestError, shortage_behind
from qnnsweep.tasks.process_tree import fork
from qnnsweep.tasks.toolchain.workers.guard import guard
from qnnsweep.tasks.toolchain.workers.messages import Answer, Raised, Receiver, Refused, Returned, loads, send
from qnnsweep.tasks.toolchain.workers.output import flush_native_output
from qnnsweep.tasks.toolchain.workers.program import serve_program

_OF_A_PASS = re.compile(r"An error occurred when running the '(\w+)' pass after")
_MOST_DESCRIPTORS = 3
"""The most connections of a process that is requested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A module-level function and its arguments, and the scratch folder of the call."""

    scratch: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def serve_requests(requests: socket.socket, value: tuple[Any, ...] = ()) -> None:
    """Fork a process for each request, until the other end closes. `value`: what precedes the arguments of calls.

    A request is one byte, the kind of the process, with the descriptors of its connections:

    `c`, a call: the connection to its guard, through which it also receives the `Call`, and the one for its answer;
    `z`, a zygote: the same, and its end of the connection for the requests of its forks;
    `p`, a program: see `program.serve_program`.
    """
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    processes: dict[int, int] = {}
    while True:
        for ready in wait([requests, *processes]):
            if ready is requests:
                kind, descriptors, *_ = socket.recv_fds(requests, 1, _MOST_DESCRIPTORS)
                if not kind:
                    return
                pid = fork(partial(_become, kind, descriptors, value, (requests.fileno(), *processes)))
                for descriptor in descriptors:
                    os.close(descriptor)
                processes[os.pidfd_open(pid)] = pid
            else:
                assert isinstance(ready, int)
                os.waitpid(processes.pop(ready), 0)
                os.close(ready)


def _become(kind: bytes, descriptors: Sequence[int], value: tuple[Any, ...], others: Sequence[int]) -> NoReturn:
    """Become the process that was requested, and exit. `others`: descriptors that the process does not need."""
    try:
        for descriptor in others:
            os.close(descriptor)
        if kind == b"p":
            serve_program(*descriptors)
        else:
            control, answers = Connection(descriptors[0]), Connection(descriptors[1], readable=False)
            requests = map(Connection, descriptors[2:])
            if (message := _received(control)) is not None:
                sys.path[:], scratch, call = message
                run = _run_zygote if kind == b"z" else _run_call
                passed = answers, *requests
                guard(control, scratch, lambda: run(call, value, *passed), passed, stays=kind == b"z")
    except BaseException:  # noqa: BLE001 - the outermost frame: the log of the fork server has the error
        traceback.print_exc()
    finally:
        os._exit(0)


def _received(control: Connection) -> tuple[list[str], Path, bytes] | None:
    """Return the caller's search path, the scratch folder and the `Call` as bytes; None if the caller has ended."""
    receiver = Receiver(control)
    while (message := receiver.receive()) is None:
        if receiver.at_end:
            return None
        wait([control])
    assert isinstance(message, tuple)
    return message


def _run_call(call: bytes, value: tuple[Any, ...], answers: Connection) -> None:
    send(answers, _answer(call, value))


def _run_zygote(call: bytes, value: tuple[Any, ...], answers: Connection, requests: Connection) -> None:
    """Run the call and report its success, without its value. Then serve requests."""
    answer = _answer(call, value)
    send(answers, Returned(None) if isinstance(answer, Returned) else answer)
    answers.close()
    if isinstance(answer, Returned):
        serve_requests(socket.socket(fileno=os.dup(requests.fileno())), (answer.value,))


def _answer(data: bytes, value: tuple[Any, ...]) -> Answer:
    _compute_in_one_thread()
    try:
        call: Call = loads(data)  # here, because it imports the module of the function
        return Returned(call.function(*value, *call.arguments))
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything, KeyboardInterrupt too
        traceback.print_exc()
        refusal = shortage_behind(error) or error
        if isinstance(refusal, RequestError | EnvironmentUnusable | EvidenceError | MachineFault):
            return Refused(refusal)
        return _raised(error)
    finally:
        flush_native_output()


def _raised(error: BaseException) -> Raised:
    """Return an error as an answer. In place of the error of a manager of passes, return that of the pass."""
    hidden, notes = error.__cause__, [*getattr(error, "__notes__", ())]
    if hidden is not None and (matched := _OF_A_PASS.match(str(error))):
        for note in (f"in the pass {matched[1]}", *notes):
            hidden.add_note(note)
        return _raised(hidden)
    return Raised(type(error).__name__, _with_notes(error))


def _with_notes(error: BaseException) -> str:
    """Return the message of an error, with its notes at the end of the first line."""
    first, *more = (str(error).strip() or repr(error)).splitlines()
    return "\n".join(["; ".join([first, *getattr(error, "__notes__", ())]), *more])


def _compute_in_one_thread() -> None:
    """Make PyTorch compute in one thread, so that results do not depend on the number of cores.

    A fork of a process that has computed in several threads would wait for these threads for ever.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
