"""The cells of collections: their operator cases are listed, then tried in batches. Every batch is a task run."""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefect.futures import PrefectFuture

from qnnsweep.conf.plan import PlannedCell
from qnnsweep.conf.schema import LimitsConfig, Request
from qnnsweep.flows.cells.graph import (
    ProgressCallback,
    await_result,
    comparison_options,
    lowering_options,
    result_names,
)
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.flows.forecasts.costs import work_label
from qnnsweep.tasks.atlas.list_cases import list_cases_task
from qnnsweep.tasks.atlas.try_cases import not_tried, try_cases_task
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import CaseOutcome, CaseOutcomes, OperatorCases
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.stage import configure_task, stored_result
from qnnsweep.tasks.toolchain.source_digest import code_digest

BATCH = 24
"""The largest number of cases of a task run."""

CASES = "cases"
"""The stage with which the progress callback is called when a batch has ended; the label has the number of cases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batches:
    """The batches of a cell."""

    futures: list[PrefectFuture[CaseOutcomes]] = field(default_factory=list[PrefectFuture[CaseOutcomes]])
    not_tried: list[CaseOutcome] = field(default_factory=list[CaseOutcome])
    """The cases of the batches for which the limit of new cases leaves no room."""
    error: BaseException | None = None
    """The error of the list of cases."""


class CollectionCells:
    """The cells of collections in a run.

    Few batches run at the same time, because an interrupted run loses the batches that have not ended. With
    `limits.new_cases`, batches are left out that have no cached result and more cases than the limit still allows.
    """

    def __init__(self, resources: Resources, limits: LimitsConfig, on_progress: ProgressCallback) -> None:
        self._resources = resources
        self._room = limits.new_cases
        self._free = threading.Semaphore((limits.parallel or len(os.sched_getaffinity(0))) + 1)
        self._report = on_progress
        self._lock = threading.Lock()
        self._ended = self._all = 0
        self._codes: dict[str, str] = {}
        self.result_names: dict[str, bool] = {}

    def run(self, cells: Sequence[PlannedCell]) -> list[CellResult]:
        """Try the cases of every cell. A cell whose cases cannot be listed fails, and the others run."""
        keys = [self._key(cell.request) for cell in cells]
        lists: dict[tuple[str, str], PrefectFuture[OperatorCases]] = {}
        listed: dict[tuple[str, str], tuple[Any, BaseException | None]] = {}
        for key, request in {self._key(cell.request): cell.request for cell in cells}.items():
            try:
                lists[key] = self._list(request)
            except RequestError as error:
                listed[key] = None, error
        listed |= {key: await_result(future) for key, future in lists.items()}
        self._all = sum(len(cases.cases) for cases, error in (listed[key] for key in keys) if error is None)
        batches = [self._submit(cell.request, *listed[self._key(cell.request)]) for cell in cells]
        futures = [future for of_cell in batches for future in of_cell.futures]
        for future in futures:
            future.wait()
        self.result_names = result_names([*lists.values(), *futures])
        return [self._result(cell.request, of_cell) for cell, of_cell in zip(cells, batches, strict=True)]

    def _key(self, request: Request) -> tuple[str, str]:
        return request.model.name, request.toolchain.name

    def _list(self, request: Request) -> PrefectFuture[OperatorCases]:
        name = f"list_cases {work_label('export', request)}"
        task = configure_task(list_cases_task, name, store=self._resources.store, on_change=lambda _state: None)
        code = self._codes.setdefault(request.model.name, code_digest(request.model))
        return task.submit(
            request.model, code, store=self._resources.store, workers=self._resources.workers_of(request)
        )

    def _submit(self, request: Request, cases: OperatorCases, error: BaseException | None) -> _Batches:
        """Submit the cases of a cell in batches."""
        if error is not None:
            return _Batches(error=error)
        self._report("compare", work_label("compare", request), "running")
        store, workers = self._resources.store, self._resources.workers_of(request)
        batches = _Batches()
        for start, batch in _split(cases):
            inputs = (
                batch,
                request.model,
                request.soc,
                lowering_options(request),
                request.measure,
                comparison_options(request),
                self._codes[request.model.name],
            )
            if self._room is not None and not stored_result(try_cases_task, workers.identity, *inputs, store=store):
                if self._room < len(batch.cases):
                    self._all -= len(batch.cases)
                    batches.not_tried.extend(map(not_tried, batch.cases))
                    continue
                self._room -= len(batch.cases)
            name = f"try_cases {work_label('lower', request)} from {start}"
            task = configure_task(try_cases_task, name, store=store, on_change=lambda _state: None)
            self._free.acquire()
            future = task.submit(*inputs, store=store, workers=workers)
            future.add_done_callback(partial(self._batch_ended, len(batch.cases)))
            batches.futures.append(future)
        return batches

    def _batch_ended(self, cases: int, _future: object) -> None:
        self._free.release()
        with self._lock:
            self._ended += cases
            self._report(CASES, f"{self._ended} of {self._all} operator cases", "done")

    def _result(self, request: Request, batches: _Batches) -> CellResult:
        """Return the outcomes of a cell's cases, or the error of the first batch that failed."""
        result = CellResult(request=request, error=batches.error)
        result.toolchain, result.stage = self._resources.workers_of(request).identity, "lower"
        parts: list[CaseOutcomes] = []
        for future in batches.futures:
            part, error = await_result(future)
            if error is not None:
                result.error = error
                break
            parts.append(part)
        result.cases = (*(outcome for part in parts for outcome in part.outcomes), *batches.not_tried)
        result.case_logs = tuple(log for part in parts for log in part.logs)
        self._report("compare", work_label("compare", request), "failed" if result.error else "done")
        return result


def _split(cases: OperatorCases) -> Iterator[tuple[int, OperatorCases]]:
    """Yield every batch with the position of its first case."""
    for start in range(0, len(cases.cases), BATCH):
        yield start, OperatorCases(cases=cases.cases[start : start + BATCH])
