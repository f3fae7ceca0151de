"""The order in which calls start on this machine: first urgent calls, then long calls, as cores and memory permit."""

import heapq
import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qnnsweep.conf.units import GIB

TYPICAL_BYTES = 5 * GIB
"""The assumed need of a call without an estimate. Lowering ViT-B/16, the largest model measured, needed 4.4 GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEstimate:
    """The cost of a call in earlier runs. A call without an estimate starts first, because it may be the longest."""

    seconds: float = float("inf")
    peak_bytes: int = TYPICAL_BYTES


@dataclass(order=True, slots=True)
class _Waiting:
    rank: tuple[bool, float, int]
    need_bytes: int = field(compare=False)
    granted: threading.Event = field(default_factory=threading.Event, compare=False)


class Scheduler:
    """A granter of slots: at most `parallel` at once, which together need at most `memory_bytes`. Is thread-safe.

    A call that needs more than `memory_bytes` runs when no other call runs, because refusing it would be worse.
    """

    def __init__(self, *, parallel: int, memory_bytes: int) -> None:
        self.parallel = parallel
        self._memory_bytes = memory_bytes
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []
        self._running = 0
        self._reserved_bytes = 0

    @contextmanager
    def slot(self, estimate: CostEstimate, *, urgent: bool = False) -> Generator[None]:
        """Wait for a core and memory. `urgent`: whether memory that is now in use can be released after this call."""
        need = estimate.peak_bytes
        waiting = _Waiting(rank=(not urgent, -estimate.seconds, next(self._numbers)), need_bytes=need)
        with self._guard:
            heapq.heappush(self._waiting, waiting)
            self._grant()
        waiting.granted.wait()
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1
                self._reserved_bytes -= need
                self._grant()

    @contextmanager
    def reserve(self, need_bytes: int) -> Generator[None]:
        """Count memory as used while the context is open, for a process that holds memory but needs no core."""
        with self._guard:
            self._reserved_bytes += need_bytes
        try:
            yield
        finally:
            with self._guard:
                self._reserved_bytes -= need_bytes
                self._grant()

    def _grant(self) -> None:
        """Grant slots in the order of rank. A call that has to wait for memory does not hold up smaller calls."""
        passed: list[_Waiting] = []
        while self._waiting and self._running < self.parallel:
            best = heapq.heappop(self._waiting)
            if self._running and self._reserved_bytes + best.need_bytes > self._memory_bytes:
                passed.append(best)
                continue
            self._running += 1
            self._reserved_bytes += best.need_bytes
            best.granted.set()
        for waiting in passed:
            heapq.heappush(self._waiting, waiting)
