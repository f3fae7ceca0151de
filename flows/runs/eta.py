"""How far a sweep is, and how long the rest will take at the pace so far."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from conf.names import CELL_STAGES
from conf.plan import PlannedCell
from flows.graph import subject

_ENDED = ("done", "reused", "failed")


class Pace:
    """Told of every stage, it knows which are still to come. Not safe between threads: its owner locks."""

    def __init__(self, cells: Sequence[PlannedCell], clock: Callable[[], float] = time.monotonic) -> None:
        requests = [cell.request for cell in cells if cell.impossible is None]
        self.cells = len(requests)
        self.ended = 0
        """Cells of which nothing is still to come."""
        self._clock = clock
        self._began = clock()
        self._pending = {(stage, subject(stage, request)) for request in requests for stage in CELL_STAGES}
        self._waiting_for: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._left = [len(CELL_STAGES)] * len(requests)
        for number, request in enumerate(requests):
            for stage in CELL_STAGES:
                self._waiting_for[stage, subject(stage, request)].append(number)
        self._since: dict[tuple[str, str], float] = {}
        self._took: dict[str, list[float]] = defaultdict(list)

    def tell(self, stage: str, whose: str, state: str) -> None:
        """A stage of a subject is now `running`, `done`, `reused` or `failed`."""
        work = stage, whose
        if state == "running":
            self._since[work] = self._clock()
        if state not in _ENDED or work not in self._pending:
            return
        self._pending.discard(work)
        if state == "done" and work in self._since:
            self._took[stage].append(self._clock() - self._since[work])
        for number in self._waiting_for[work]:
            # What stands on something that failed never begins.
            before = self._left[number]
            self._left[number] = 0 if state == "failed" else max(0, before - 1)
            if before and not self._left[number]:
                self.ended += 1
                self._drop(number)

    def _drop(self, number: int) -> None:
        """Forget what no cell but this one, which has ended, was waiting for."""
        for work in [work for work in self._pending if number in self._waiting_for[work]]:
            if not any(self._left[other] for other in self._waiting_for[work]):
                self._pending.discard(work)

    def left_s(self) -> float | None:
        """Seconds to the end if each stage goes on taking what it took, as many at a time as until now.

        By Little's law: the work that is left over the mean number of stages under way so far. None before every
        stage that is still to come has been seen once.
        """
        to_come = Counter(stage for stage, _ in self._pending)
        if any(stage not in self._took for stage in to_come):
            return None
        work = sum(count * _mean(self._took[stage]) for stage, count in to_come.items())
        busy, passed = sum(map(sum, self._took.values())), self._clock() - self._began
        return work * passed / busy if busy else None

    def words(self) -> str:
        """`3 of 9 cells`, and how long it will still take where that can be told."""
        left = self.left_s() if self.ended < self.cells else None
        return f"{self.ended} of {self.cells} cells" + (f", about {_rounded(left)} left" if left else "")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5 if seconds > 10 else round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"
