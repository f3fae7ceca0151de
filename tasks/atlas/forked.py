"""A step of a case in a process of its own, so that an abort ends only this step."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tasks.toolchain.workers.output import flush_native_output

_MOST_LINES, _MOST_CHARACTERS = 4, 600
"""How much of an error's message is kept. The log has all of it."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """The value that a step returned."""

    value: Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The error of a step. `is_killed`: whether a signal ended its process."""

    text: str
    is_killed: bool


def in_fork(step: Callable[[], Value]) -> Done[Value] | Failed:
    """Run `step` in a fork of this process. Its value is pickled."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            _answer(step, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return Failed(text=signal.Signals(os.WTERMSIG(status)).name, is_killed=True)
    if not answer:
        return Failed(text=f"exit code {os.WEXITSTATUS(status)} without an answer", is_killed=True)
    done: Done[Value] | Failed = pickle.loads(answer)  # noqa: S301 - of this process
    return done


def _answer(step: Callable[[], object], writing: int) -> None:
    try:
        answer: Done[object] | Failed = Done(step())
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = "; ".join(lines[:_MOST_LINES])[:_MOST_CHARACTERS] or repr(error)
        answer = Failed(text=f"{type(error).__name__}: {text}", is_killed=False)
    flush_native_output()
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(answer, pipe)
