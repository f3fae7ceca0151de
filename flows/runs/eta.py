"""The number of cells that have ended, and an estimate of the time until all cells have ended."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from conf.names import CELL_STAGES
from conf.plan import PlannedCell
from flows.graph import work_label

_FINAL_STATES = ("done", "reused", "failed")


class EtaEstimate:
    """An estimate of the time left, updated with the state of every stage. Not thread-safe: the caller holds a lock."""

    def __init__(self, cells: Sequence[PlannedCell], clock: Callable[[], float] = time.monotonic) -> None:
        requests = [cell.request for cell in cells if cell.impossible is None]
        self.cells = len(requests)
        self.ended = 0
        """The number of cells that wait for no further stage."""
        self._clock = clock
        self._start = clock()
        self._waiting_cells: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._stages_left = [len(CELL_STAGES)] * len(requests)
        for number, request in enumerate(requests):
            for stage in CELL_STAGES:
                self._waiting_cells[stage, work_label(stage, request)].append(number)
        self._pending = set(self._waiting_cells)
        self._since: dict[tuple[str, str], float] = {}
        self._durations: dict[str, list[float]] = defaultdict(list)

    def update(self, stage: str, label: str, state: str) -> None:
        """Record the new state of the stage's work with this label: `running`, `done`, `reused` or `failed`."""
        work = stage, label
        if state == "running":
            self._since[work] = self._clock()
        if state not in _FINAL_STATES or work not in self._pending:
            return
        self._pending.discard(work)
        if state == "done" and work in self._since:
            self._durations[stage].append(self._clock() - self._since[work])
        for number in self._waiting_cells[work]:
            # The stages after a failed stage never start.
            before = self._stages_left[number]
            self._stages_left[number] = 0 if state == "failed" else max(0, before - 1)
            if before and not self._stages_left[number]:
                self.ended += 1
                self._drop(number)

    def _drop(self, number: int) -> None:
        """Drop the pending work of a cell that has ended. Keep the work for which another cell still waits."""
        for work in [work for work in self._pending if number in self._waiting_cells[work]]:
            if not any(self._stages_left[other] for other in self._waiting_cells[work]):
                self._pending.discard(work)

    def seconds_left(self) -> float | None:
        """Return the number of seconds until the end if durations and concurrency stay at their present means.

        By Little's law, this time is the remaining work divided by the mean number of stages that ran at the same time.
        Return None if any of the remaining stages has not been observed yet.
        """
        remaining = Counter(stage for stage, _ in self._pending)
        if any(stage not in self._durations for stage in remaining):
            return None
        work = sum(count * fmean(self._durations[stage]) for stage, count in remaining.items())
        busy, elapsed = sum(map(sum, self._durations.values())), self._clock() - self._start
        return work * elapsed / busy if busy else None

    def summary(self) -> str:
        """Return a text such as `3 of 9 cells, about 5 min left`, or `3 of 9 cells` if there is no estimate."""
        left = self.seconds_left() if self.ended < self.cells else None
        return f"{self.ended} of {self.cells} cells" + (f", about {_rounded(left)} left" if left else "")


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5 if seconds > 10 else round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"
