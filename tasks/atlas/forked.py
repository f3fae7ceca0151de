"""A step of a case in a process of its own, so that an abort ends only this step."""

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

from qnnsweep.tasks.errors import shortage_behind
from qnnsweep.tasks.toolchain.workers.messages import Answer, Raised, Receiver, Refused, Returned, send
from qnnsweep.tasks.toolchain.workers.output import flush_native_output

_MOST_LINES, _MOST_CHARACTERS = 4, 600
"""How much of an error's message is kept. The log has all of it."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """The value that a step returned."""

    value: Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The error of a step.

    `error`: the name of the exception's class. It is None if the process ended without an answer.
    """

    text: str
    error: str | None

    @property
    def is_killed(self) -> bool:
        return self.error is None


def in_fork(step: Callable[[], Value]) -> Done[Value] | Failed:
    """Run `step` in a fork of this process, and return what it returned or raised. Raises MachineFault."""
    receiving, sending = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        receiving.close()
        try:
            _answer(step, sending)
        finally:
            os._exit(0)
    sending.close()
    receiver = Receiver(receiving)
    while (answer := receiver.receive()) is None and not receiver.at_end:
        wait([receiving])
    receiver.close()
    _, status = os.waitpid(pid, 0)
    match answer:
        case Returned(value):
            return Done(value)
        case Raised(name, text):
            return Failed(text=f"{name}: {text}", error=name)
        case Refused(error):
            raise error
        case _:
            return Failed(text=_ending(status), error=None)


def _answer(step: Callable[[], object], sending: Connection) -> None:
    try:
        answer: Answer = Returned(step())
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = Raised(type(error).__name__, "; ".join(lines[:_MOST_LINES])[:_MOST_CHARACTERS] or repr(error))
        if (fault := shortage_behind(error)) is not None:
            answer = Refused(fault)
    flush_native_output()
    send(sending, answer)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.WEXITSTATUS(status)} without an answer"
