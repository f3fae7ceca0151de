"""Toolchain calls in child processes, so that an abort, an out-of-memory kill or a hang is one failed cell.

Children are forked from a server that has torch and ExecuTorch imported already (seconds saved a call) and whose
environment was right before it started, which the dynamic linker demands.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Generic, TypeVar

from conf.units import GIB
from tasks.errors import EnvironmentUnusable, ToolchainError
from tasks.records import Blob, Toolchain
from tasks.storage.store import Store
from tasks.toolchain.workers.handle import Child, GroundChild, Process
from tasks.toolchain.workers.scheduler import Expected, Places
from tasks.toolchain.workers.worker import LOG, Call

Result = TypeVar("Result")

_PRELOAD = "tasks.toolchain.workers.preload"
_POLL_S = 0.1
_TAIL_LINES = 12
_LONGEST_TEMPORARY = 107 - len("/pymp-12345678/listener-12345678")
"""Bytes of the temporary folder's path. The fork server listens below it, and Linux has 107 for a socket's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Generic[Result]):
    """A call that returned: its value, its whole log, and how long it took."""

    value: Result
    log: Blob
    seconds: float


Subject = tuple[str, ...]
"""Whose work a call is: names of a model, a scheme, a backend and an SoC, as far as it depends on them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Took:
    """What a call, failed or not, cost: for the next sweep to plan with."""

    stage: str
    subject: Subject
    seconds: float
    peak_bytes: int
    """Resident; of a call on a ground what it had for itself alone."""


def check_temporary_folder() -> None:
    """Raises EnvironmentUnusable where no fork server could listen."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _LONGEST_TEMPORARY:
        raise EnvironmentUnusable(
            f"TMPDIR={folder}: too long for the sockets below it",
            remedy=f"set TMPDIR to a folder whose path has at most {_LONGEST_TEMPORARY} bytes",
        )


class Children:
    """Runs module-level functions in children, as many at a time as `places` allows. Safe to share between threads."""

    def __init__(
        self,
        *,
        identity: Toolchain,
        environment: Mapping[str, str],
        store: Store,
        places: Places,
        deadline_s: float,
        memory_bytes: int,
        expected: Mapping[tuple[str, Subject], Expected] | None = None,
    ) -> None:
        """A child above `memory_bytes` resident is stopped. `expected`: what calls take, by stage and subject."""
        self.identity = identity
        self.calls: Counter[str] = Counter()
        """How often each stage had a child; what calls stand on is not counted."""
        self.took: list[Took] = []
        self._environment = dict(environment)
        self._store = store
        self._places = places
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._expected = dict(expected or {})
        self._guard = threading.Lock()
        self._grounds: dict[str, Ground] = {}
        self._context = multiprocessing.get_context("forkserver")

    def call(
        self, stage: str, function: Callable[..., Result], *arguments: Any, subject: Subject = (), urgent: bool = False
    ) -> Finished[Result]:
        """`function(*arguments)` in a child with its own scratch folder as working directory.

        `urgent`: before all that is not.
        Raises ToolchainError with the cause and the last log lines when it does not return, and the function's own
        RequestError, EnvironmentUnusable or EvidenceError.
        """
        with self._place(stage, subject, urgent=urgent), self._scratch(stage) as scratch:
            self._count(stage)
            self._start_server()
            began = time.monotonic()
            child = Child(self._context, Call(scratch=scratch, function=function, arguments=arguments))
            return self._follow(child, stage, subject, scratch, began)

    @contextlib.contextmanager
    def ground(
        self, key: str, stage: str, function: Callable[..., Any], *arguments: Any, subject: Subject = ()
    ) -> Generator[Ground]:
        """What calls stand on: `function(*arguments)`, in a child that is there until the last holder of `key` leaves.

        It is made when the first call on it comes.
        """
        with self._guard:
            made = Ground(self, stage, subject, Call(scratch=Path(), function=function, arguments=arguments))
            ground = self._grounds.setdefault(key, made)
            ground.holders += 1
        try:
            yield ground
        finally:
            with self._guard:
                ground.holders -= 1
                if last := ground.holders == 0:
                    del self._grounds[key]
            if last:
                ground.end.close()

    def _place(self, stage: str, subject: Subject, *, urgent: bool) -> contextlib.AbstractContextManager[None]:
        known = self._expected.get((stage, subject), Expected())
        expected = Expected(seconds=known.seconds, peak_bytes=min(known.peak_bytes, self._memory_bytes))
        return self._places.place(expected, urgent=urgent)

    @contextlib.contextmanager
    def _scratch(self, stage: str) -> Iterator[Path]:
        with self._store.scratch(stage) as scratch:
            (scratch / LOG).touch()
            yield scratch

    def _count(self, stage: str) -> None:
        with self._guard:
            self.calls[stage] += 1

    def _start_server(self) -> None:
        # Safe path: a `tasks` folder where the user happens to stand is not ours to import.
        with self._guard, _environ(self._environment | {"PYTHONSAFEPATH": "1"}):
            self._context.set_forkserver_preload([_PRELOAD])
            forkserver.ensure_running()

    def _follow(
        self, process: Process, stage: str, subject: Subject, scratch: Path, began: float, *, stays: bool = False
    ) -> Finished[Any]:
        """Listen to the process until it has answered, has ended, or is beyond its limits; end it unless it `stays`."""
        peak = 0
        said = ended_by = None
        try:
            while said is None:
                said = process.next(_POLL_S)
                weight = process.weigh()
                peak = max(peak, weight.own_bytes)
                if said is None and time.monotonic() - began > self._deadline_s:
                    said = "silenced", "deadline", f"deadline of {self._deadline_s:g} s"
                elif said is None and weight.resident_bytes > self._memory_bytes:
                    said = "silenced", "memory limit", f"memory limit of {self._memory_bytes / GIB:g} GiB"
        finally:
            if not stays:
                process.close()
        seconds = time.monotonic() - began
        log = self._store.put_file(scratch / LOG)
        self.took.append(Took(stage=stage, subject=subject, seconds=seconds, peak_bytes=peak))
        match said:
            case ("returned", value):
                return Finished(value=value, log=log, seconds=seconds)
            case ("refused", error):
                raise error
            case ("raised", cause, text):
                why = f"{cause}: {text}"
            case ("ended", code):
                cause, why, ended_by = _death(code)
                why = f"{why}\n{_tail(scratch / LOG)}"
            case _:
                _, cause, text = said
                why = f"{text}\n{_tail(scratch / LOG)}"
        message = f"{stage} failed: {why}".rstrip()
        raise ToolchainError(message, stage=stage, cause=cause, signal=ended_by, log=log.sha256)


class Ground:
    """A child that has made something and stays, for calls that are forks of it."""

    def __init__(self, children: Children, stage: str, subject: Subject, asked: Call) -> None:
        self.subject = subject
        self.holders = 0
        self.end = contextlib.ExitStack()
        self.seconds = 0.0
        """What making it took."""
        self._children = children
        self._stage = stage
        self._asked = asked
        self._making = threading.Lock()
        self._made: GroundChild | Exception | None = None

    def call(
        self, stage: str, function: Callable[..., Result], *arguments: Any, subject: Subject = ()
    ) -> Finished[Result]:
        """`function(what was made, *arguments)`, else as Children.call; the log begins with the ground's own."""
        with self._making:  # whoever comes first makes it, the others wait
            if self._made is None:
                try:
                    self._made = self._make()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to each of them
                    self._made = error
            made = self._made
        if isinstance(made, Exception):
            raise made
        children = self._children
        # Urgent: memory is held for it.
        with children._place(stage, subject, urgent=True), children._scratch(stage) as scratch:
            children._count(stage)
            began = time.monotonic()
            try:
                fork = made.fork(children._context, Call(scratch=scratch, function=function, arguments=arguments))
            except (OSError, EOFError) as error:
                why = f"{stage} failed: somebody killed the process that it was to be forked from; run again"
                raise ToolchainError(why, stage=stage, cause="killed", log=None) from error
            return children._follow(fork, stage, subject, scratch, began)

    def _make(self) -> GroundChild:
        children = self._children
        with contextlib.ExitStack() as end:
            with children._place(self._stage, self.subject, urgent=False):
                children._start_server()
                scratch = end.enter_context(children._scratch(self._stage))
                began = time.monotonic()
                asked = Call(scratch=scratch, function=self._asked.function, arguments=self._asked.arguments)
                child = end.enter_context(contextlib.closing(GroundChild(children._context, asked)))
                children._follow(child, self._stage, self.subject, scratch, began, stays=True)
                self.seconds = time.monotonic() - began
                end.enter_context(children._places.kept(child.weigh().own_bytes))
            self.end = end.pop_all()
        return child


def _death(exit_code: int | None) -> tuple[str, str, signal.Signals | None]:
    if exit_code is None or exit_code >= 0:
        return "exit", f"exit code {exit_code} without an answer", None
    number = signal.Signals(-exit_code)
    hint = " (often the kernel's out-of-memory killer)" if number is signal.SIGKILL else ""
    return number.name, f"{number.name}{hint}", number


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
