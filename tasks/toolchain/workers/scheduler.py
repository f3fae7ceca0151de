"""Which call may start next on this machine: what others wait for first, then the longest, within cores and memory."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from conf.units import GIB

TYPICAL_BYTES = 5 * GIB
"""What the largest model seen needed to be lowered: ViT-B/16, 4.4 GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What a call takes, as far as earlier runs tell. One that nobody has seen goes first: it may be the longest."""

    seconds: float = float("inf")
    peak_bytes: int = TYPICAL_BYTES


@dataclass(order=True, slots=True)
class _Waiting:
    rank: tuple[bool, float, int]
    need_bytes: int = field(compare=False)
    granted: threading.Event = field(default_factory=threading.Event, compare=False)


class Places:
    """At most `parallel` calls at once, together within `memory_bytes`. Safe to share between threads.

    A call that alone needs more than all memory still runs, alone: refusing it would be worse.
    """

    def __init__(self, *, parallel: int, memory_bytes: int) -> None:
        self._parallel = parallel
        self._memory_bytes = memory_bytes
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []
        self._running = 0
        self._taken_bytes = 0

    @contextmanager
    def place(self, expected: Expected, *, urgent: bool = False) -> Generator[None]:
        """Wait for a core and the memory; `urgent` for what ends something that holds memory already."""
        need = expected.peak_bytes
        waiting = _Waiting(rank=(not urgent, -expected.seconds, next(self._numbers)), need_bytes=need)
        with self._guard:
            heapq.heappush(self._waiting, waiting)
            self._grant()
        waiting.granted.wait()
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1
                self._taken_bytes -= need
                self._grant()

    @contextmanager
    def kept(self, need_bytes: int) -> Generator[None]:
        """Count memory that somebody holds without working."""
        with self._guard:
            self._taken_bytes += need_bytes
        try:
            yield
        finally:
            with self._guard:
                self._taken_bytes -= need_bytes
                self._grant()

    def _grant(self) -> None:
        """Let in, best first, whoever fits: a smaller one may pass one that has to wait for memory."""
        passed: list[_Waiting] = []
        while self._waiting and self._running < self._parallel:
            best = heapq.heappop(self._waiting)
            if self._running and self._taken_bytes + best.need_bytes > self._memory_bytes:
                passed.append(best)
                continue
            self._running += 1
            self._taken_bytes += best.need_bytes
            best.granted.set()
        for waiting in passed:
            heapq.heappush(self._waiting, waiting)
