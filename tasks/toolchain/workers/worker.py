"""The code that runs in a worker process: its call, and its answer.

A worker is forked from Python's fork server for one call. A zygote is a worker that stays alive after its call. Its
forks then run later calls, which need the value that the zygote's call returned. A guard (`guard.py`) is the parent of
every worker and of every fork.
"""

import gc
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError, MachineFault, RequestError, shortage_behind
from qnnsweep.tasks.toolchain.workers.guard import guard
from qnnsweep.tasks.toolchain.workers.messages import Answer, Raised, Refused, Returned, send
from qnnsweep.tasks.toolchain.workers.output import flush_native_output


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A module-level function and its arguments, and the scratch folder of the call."""

    scratch: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def serve_call(control: Connection, answers: Connection, call: Call) -> None:
    """Run one call in a child process, and send its answer."""
    guard(control, call.scratch, lambda: send(answers, _answer(call.function, call.arguments)), (answers,))


def serve_zygote(control: Connection, answers: Connection, requests: Connection, call: Call) -> None:
    """Run `call` and report its success, without its value. Then run each call that `requests` receives in a fork.

    It ends when `requests` closes. With each call, it receives the connections for the call's answer and guard.
    """
    guard(control, call.scratch, lambda: _run_zygote(answers, requests, call), (answers, requests), stays=True)


def _run_zygote(answers: Connection, requests: Connection, call: Call) -> None:
    answer = _answer(call.function, call.arguments)
    send(answers, Returned(None) if isinstance(answer, Returned) else answer)
    answers.close()
    if not isinstance(answer, Returned):
        return
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    guards: dict[int, int] = {}
    while True:
        for ready in wait([requests, *guards]):
            if ready is requests:
                try:
                    forked_call: Call = requests.recv()
                except EOFError:
                    return
                answers, control = (Connection(recv_handle(requests)) for _ in range(2))
                pid = os.fork()
                if pid == 0:
                    requests.close()
                    _serve_fork(control, answers, forked_call, answer.value)
                answers.close()
                control.close()
                guards[os.pidfd_open(pid)] = pid
            else:
                assert isinstance(ready, int)
                os.waitpid(guards.pop(ready), 0)
                os.close(ready)


def _serve_fork(control: Connection, answers: Connection, call: Call, value: Any) -> None:
    """Run a call on the zygote's value, and exit."""
    try:
        serve_call(control, answers, replace(call, arguments=(value, *call.arguments)))
    finally:
        os._exit(0)


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        return Returned(function(*arguments))
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything, KeyboardInterrupt too
        traceback.print_exc()
        refusal = shortage_behind(error) or error
        if isinstance(refusal, RequestError | EnvironmentUnusable | EvidenceError | MachineFault):
            return Refused(refusal)
        return Raised(type(error).__name__, str(error).strip() or repr(error))
    finally:
        flush_native_output()
