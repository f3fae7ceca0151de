"""Toolchain calls in child processes, so that an abort, an out-of-memory kill or a hang is one failed cell.

Children are forked from a server that has torch and ExecuTorch imported already (seconds saved a call) and whose
environment was right before it started, which the dynamic linker demands.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from tasks.errors import EnvironmentUnusable, EvidenceError, QnnsweepError, RequestError, ToolchainError
from tasks.records import Blob, Toolchain
from tasks.storage.store import Store

Result = TypeVar("Result")

_PRELOAD = "tasks.toolchain.preload"
_POLL_S = 0.1
_DYING_S = 5.0
_TAIL_LINES = 12
_IOLBF = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Generic[Result]):
    """A call that returned: its value, its whole log, and how long it took."""

    value: Result
    log: Blob
    seconds: float


class Children:
    """Runs module-level functions in children, at most `parallel` at a time. Safe to share between threads."""

    def __init__(
        self,
        *,
        identity: Toolchain,
        environment: Mapping[str, str],
        store: Store,
        parallel: int,
        deadline_s: float,
        memory_bytes: int,
    ) -> None:
        self.identity = identity
        self.calls: Counter[str] = Counter()
        """How often each stage had a child."""
        self._environment = dict(environment)
        self._store = store
        self._slots = threading.BoundedSemaphore(parallel)
        self._counting = threading.Lock()
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._context = multiprocessing.get_context("forkserver")

    def call(self, stage: str, function: Callable[..., Result], *arguments: Any) -> Finished[Result]:
        """`function(*arguments)` in a child with its own scratch folder as working directory.

        Raises ToolchainError with the cause and the last log lines when it does not return, and the function's own
        RequestError, EnvironmentUnusable or EvidenceError.
        """
        with self._slots:
            with self._counting:
                self.calls[stage] += 1
                self._start_server()
            with self._store.scratch(stage) as scratch:
                return self._run(stage, scratch, function, arguments)

    def _start_server(self) -> None:
        self._context.set_forkserver_preload([_PRELOAD])
        # Safe path: a `tasks` folder where the user happens to stand is not ours to import.
        with _environ(self._environment | {"PYTHONSAFEPATH": "1"}):
            forkserver.ensure_running()

    def _run(
        self, stage: str, scratch: Path, function: Callable[..., Result], arguments: tuple[Any, ...]
    ) -> Finished[Result]:
        log = scratch / "child.log"
        log.touch()
        receiving, sending = self._context.Pipe(duplex=False)
        watching, living = self._context.Pipe(duplex=False)
        started = time.monotonic()
        work = (sending, watching, log, scratch, function, arguments)
        child = self._context.Process(target=_serve, args=work, daemon=False)
        child.start()
        sending.close()
        watching.close()
        try:
            answer, cause, why = self._wait(child, receiving, started)
        finally:
            _end(child)
            receiving.close()
            living.close()
        seconds = time.monotonic() - started
        blob = self._store.put_file(log)
        if answer is not None and answer[0] == "returned":
            return Finished(value=answer[1], log=blob, seconds=seconds)
        if answer is not None and answer[0] == "refused":
            raise answer[1]
        if answer is not None:
            cause, why = answer[1], f"{answer[1]}: {answer[2]}"
        else:
            why = f"{why}\n{_tail(log)}"
        raise ToolchainError(f"{stage} failed: {why}".rstrip(), stage=stage, cause=cause, log=blob.sha256)

    def _wait(
        self, child: ForkServerProcess, receiving: Connection, started: float
    ) -> tuple[tuple[Any, ...] | None, str, str]:
        """What the child answered, or None, the cause of its silence and that cause in words."""
        while True:
            # The process is watched too: a child of its own may hold the pipe open after its death.
            ready = wait([receiving, child.sentinel], timeout=_POLL_S)
            if receiving in ready:
                # OSError: it died in the middle of its answer.
                with contextlib.suppress(EOFError, OSError):
                    return receiving.recv(), "", ""
            if ready:
                child.join(timeout=_DYING_S)
                return None, *_death(child.exitcode)
            if time.monotonic() - started > self._deadline_s:
                return None, "deadline", f"deadline of {self._deadline_s:g} s"
            if _resident_bytes(child.pid) > self._memory_bytes:
                return None, "memory limit", f"memory limit of {self._memory_bytes / 2**30:g} GiB"


def _serve(
    sending: Connection,
    watching: Connection,
    log: Path,
    scratch: Path,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """The child: a session of its own (so that its children die with it), its log a file, its answer one message."""
    os.setsid()
    _die_with(watching)
    os.chdir(scratch)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # C's stdout by lines as well: an abort does not flush, and its last words are the ones that count.
    native = ctypes.CDLL(None)
    native.setvbuf(ctypes.c_void_p.in_dll(native, "stdout"), None, _IOLBF, ctypes.c_size_t(0))
    try:
        answer: tuple[Any, ...] = ("returned", function(*arguments))
    except (RequestError, EnvironmentUnusable, EvidenceError) as error:
        traceback.print_exc()
        answer = ("refused", error)
    except QnnsweepError as error:
        traceback.print_exc()
        answer = ("raised", type(error).__name__, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the border where foreign errors become ours
        traceback.print_exc()
        answer = ("raised", type(error).__name__, str(error).strip() or repr(error))
    flush_native_output()
    sending.send(answer)


def _die_with(watching: Connection) -> None:
    """Have the kernel kill this process group when the caller, who alone holds the other end of the pipe, is gone.

    A thread of ours could not do it while native code holds the interpreter; the death of the fork server is no sign
    of it, because every child keeps that one alive.
    """
    fcntl.fcntl(watching, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(watching, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(watching, fcntl.F_SETFL, os.O_ASYNC)
    if watching.poll():  # it was gone before the kernel knew what to do
        os.killpg(0, signal.SIGKILL)


def flush_native_output() -> None:
    """What native code wrote to C's stdout is buffered there; a forked child leaves without flushing it."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def _end(child: ForkServerProcess) -> None:
    """Kill the child and what it started. One that has answered has nothing left to do, and its log is written."""
    assert child.pid is not None, "started"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()  # it may not have come to lead its own group yet
    child.join()


def _resident_bytes(pid: int | None) -> int:
    try:
        parent = psutil.Process(pid)
        return sum(process.memory_info().rss for process in (parent, *parent.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def _death(exit_code: int | None) -> tuple[str, str]:
    if exit_code is None or exit_code >= 0:
        return "exit", f"exit code {exit_code} without an answer"
    name = signal.Signals(-exit_code).name
    return name, f"{name} (often the kernel's out-of-memory killer)" if name == "SIGKILL" else name


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(line[:400] for line in lines[-_TAIL_LINES:])


@contextlib.contextmanager
def _environ(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
