"""The number of cells that have ended, and an estimate of the time until all cells have ended."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from qnnsweep.conf.names import CELL_STAGES, WORKER_STAGES
from qnnsweep.conf.plan import PlannedCell
from qnnsweep.flows.graph import work_label
from qnnsweep.tasks.report.format import about

_FINAL_STATES = ("done", "reused", "failed")
_BASIS = 3
"""An estimate needs so many measured durations of every remaining stage. A quarter of the stage's work is enough."""
_RESOURCES = {stage: "cores" if stage in WORKER_STAGES else "devices" for stage in CELL_STAGES}
"""What a stage waits for before it runs. Stages with the same resource share it."""


class _Usage:
    """How much work used a resource at the same time, until now."""

    def __init__(self, now: float) -> None:
        self.busy_s = self.active_s = 0.0
        """The sum of the seconds of all works, and the seconds in which any of them ran."""
        self._running, self._at = 0, now

    def change(self, now: float, by: int = 0) -> None:
        """Record that the number of running works changes by `by`."""
        self.busy_s += self._running * (now - self._at)
        self.active_s += (now - self._at) if self._running else 0.0
        self._running, self._at = self._running + by, now


class EtaEstimate:
    """An estimate of the time left, updated with the state of every stage. Not thread-safe: the caller holds a lock."""

    def __init__(self, cells: Sequence[PlannedCell], clock: Callable[[], float] = time.monotonic) -> None:
        requests = [cell.request for cell in cells if cell.impossible is None]
        self.cells = len(requests)
        self.ended = 0
        """The number of cells that wait for no further stage."""
        self._clock = clock
        self._start = clock()
        self._usage = {resource: _Usage(clock()) for resource in set(_RESOURCES.values())}
        self._waiting_cells: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._stages_left = [len(CELL_STAGES)] * len(requests)
        for number, request in enumerate(requests):
            for stage in CELL_STAGES:
                self._waiting_cells[stage, work_label(stage, request)].append(number)
        self._pending = set(self._waiting_cells)
        self._since: dict[tuple[str, str], float] = {}
        self._durations: dict[str, list[float]] = defaultdict(list)

    def update(self, stage: str, label: str, state: str) -> None:
        """Record the new state of the stage's work with this label.

        `state`: `queued` (it waits for a core), `running`, `done`, `reused` or `failed`.
        """
        work, now = (stage, label), self._clock()
        if state == "running" and work in self._pending and work not in self._since:
            self._since[work] = now
            self._usage[_RESOURCES[stage]].change(now, 1)
        if state not in _FINAL_STATES or work not in self._pending:
            return
        self._pending.discard(work)
        if (since := self._since.pop(work, None)) is not None:
            self._usage[_RESOURCES[stage]].change(now, -1)
            if state == "done":
                self._durations[stage].append(now - since)
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

        By Little's law, a time is the remaining work divided by the mean number of stages that ran at the same time.
        The longest of three times counts: that of all work, that of each resource, and that of the last cell.
        Return None if any of the remaining stages has not been measured often enough.
        """
        now, remaining = self._clock(), Counter(stage for stage, _ in self._pending)
        for stage, count in remaining.items():
            done = len(self._durations[stage])
            if done < min(_BASIS, max(1, (done + count) // 4)):
                return None
        mean_s = {stage: fmean(self._durations[stage]) for stage in remaining}
        work_s: dict[str, float] = defaultdict(float)
        for stage, count in remaining.items():
            work_s[_RESOURCES[stage]] += count * mean_s[stage]
        for (stage, _), since in self._since.items():
            work_s[_RESOURCES[stage]] -= min(now - since, mean_s[stage])
        for usage in self._usage.values():
            usage.change(now)
        busy_s = sum(usage.busy_s for usage in self._usage.values())
        all_work = sum(work_s.values()) * (now - self._start) / busy_s if busy_s else 0.0
        by_resource = [
            seconds * self._usage[resource].active_s / self._usage[resource].busy_s
            for resource, seconds in work_s.items()
            if self._usage[resource].busy_s
        ]
        stages_left = max(self._stages_left, default=0)
        last_cell = sum(mean_s.get(stage, 0.0) for stage in CELL_STAGES[len(CELL_STAGES) - stages_left :])
        return max([all_work, last_cell, *by_resource])

    def summary(self) -> str:
        """Return a text such as `3 of 9 cells, about 5 min left`, or `3 of 9 cells` if there is no estimate."""
        left = self.seconds_left() if self.ended < self.cells else None
        return f"{self.ended} of {self.cells} cells" + (f", about {about(left)} left" if left else "")
