"""The cells of collections: their operator cases are listed, then tried in batches. Every batch is a task run."""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.utilities.annotations import opaque

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.impossible import can_run_on, excludes_second_runtime, is_here
from qnnsweep.conf.plan import PlannedCell
from qnnsweep.conf.schema import LimitsConfig, Request, Reuse
from qnnsweep.flows.cells.graph import (
    ProgressCallback,
    await_result,
    comparison_options,
    lowering_options,
    result_names,
    soc_of,
)
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.flows.forecasts.costs import work_label
from qnnsweep.tasks.atlas.compare_cases import compare_cases_task
from qnnsweep.tasks.atlas.compile_cases import compile_cases_task
from qnnsweep.tasks.atlas.list_cases import list_cases_task
from qnnsweep.tasks.atlas.measure_cases import measure_cases_task
from qnnsweep.tasks.atlas.states import not_tried
from qnnsweep.tasks.atlas.try_cases import try_cases_task
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import CaseOutcome, CaseOutcomes, OperatorCases, Toolchain
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.stage import Upstream, configure_task, stored_result
from qnnsweep.tasks.toolchain.source_digest import code_digest

BATCH = 24
"""The largest number of cases of a task run."""

_STAGES = ("lower", "execute", "compare")
"""The stages of a cell that the tasks of a batch stand for."""
CASES = "cases"
"""The stage with which the progress callback is called when a batch has ended; the label has the number of cases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batches:
    """The batches of a cell."""

    futures: list[list[PrefectFuture[Any]]] = field(default_factory=list[list[PrefectFuture[Any]]])
    """The task runs of each batch. The last one returns the outcomes."""
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
        futures = [future for of_cell in batches for of_batch in of_cell.futures for future in of_batch]
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
        options = case_options(request, workers.identity)
        devices = tuple(device for device in request.devices if can_run_on(device, request))
        batches, is_local = _Batches(), all(map(is_here, devices))
        is_divided = any(device.runner.divides for device in devices)
        first: Task[..., Any] = try_cases_task if is_local else compile_cases_task
        more = () if is_local else (is_divided,)
        for start, batch in _split(cases):
            inputs = batch, options, self._codes[request.model.name], *more
            if self._room is not None and not stored_result(first, workers.identity, *inputs, store=store):
                if self._room < len(batch.cases):
                    self._all -= len(batch.cases)
                    batches.not_tried.extend(map(not_tried, batch.cases))
                    continue
                self._room -= len(batch.cases)
            self._free.acquire()
            futures = [self._task(first, request, start).submit(*inputs, store=store, workers=workers)]
            if not is_local:
                futures += self._on_devices(futures[0], request, start, options, devices)
            futures[-1].add_done_callback(partial(self._batch_ended, len(batch.cases)))
            batches.futures.append(futures)
        return batches

    def _on_devices(
        self,
        compiled: PrefectFuture[Any],
        request: Request,
        start: int,
        options: CaseOptions,
        devices: tuple[DeviceConfig, ...],
    ) -> list[PrefectFuture[Any]]:
        """Submit the measurement of a batch, and its comparison."""
        store, workers = self._resources.store, self._resources.workers_of(request)
        upstream = Upstream(compiled, _run_name(compile_cases_task, request, start))
        task = self._task(measure_cases_task, request, start, upstream)
        measured = task.submit(
            opaque(upstream),
            devices,
            soc_of(request),
            workers.identity,
            store=store,
            farm=self._resources.farm_of(request),
        )
        further = Upstream(measured, _run_name(measure_cases_task, request, start))
        task = self._task(compare_cases_task, request, start, upstream, further)
        compared = task.submit(opaque(upstream), opaque(further), options, store=store, workers=workers)
        return [measured, compared]

    def _task(self, task: Task[..., Any], request: Request, start: int, *inputs: Upstream) -> Task[..., Any]:
        """Return the task for a batch. Measurements of earlier runs are reused only with `reuse=capture`."""
        return configure_task(
            task,
            _run_name(task, request, start),
            store=self._resources.store,
            on_change=lambda _state: None,
            refresh=task.name == "measure_cases" and request.reuse is not Reuse.capture,
            inputs=inputs,
        )

    def _batch_ended(self, cases: int, _future: object) -> None:
        self._free.release()
        with self._lock:
            self._ended += cases
            self._report(CASES, f"{self._ended} of {self._all} operator cases", "done")

    def _result(self, request: Request, batches: _Batches) -> CellResult:
        """Return the outcomes of a cell's cases, or the error of the first batch that failed."""
        result = CellResult(request=request, error=batches.error)
        result.toolchain, result.stage = self._resources.workers_of(request).identity, _STAGES[0]
        parts: list[CaseOutcomes] = []
        for futures in batches.futures:
            ended = [await_result(future) for future in futures]
            failed = [(stage, error) for stage, (_, error) in zip(_STAGES, ended, strict=False) if error is not None]
            if failed:
                result.stage, result.error = failed[0]
                break
            parts.append(ended[-1][0])
        result.cases = (*(outcome for part in parts for outcome in part.outcomes), *batches.not_tried)
        result.case_logs = tuple(log for part in parts for log in part.logs)
        self._report("compare", work_label("compare", request), "failed" if result.error else "done")
        return result


def case_options(request: Request, toolchain: Toolchain) -> CaseOptions:
    """Return the options of the cases of a request's model, which is a collection.

    ONNX Runtime executes the cases, too, if it executes programs of the backend and of the toolchain.
    """
    return CaseOptions(
        model=request.model,
        soc=request.soc,
        lowering=lowering_options(request),
        measure=request.measure,
        comparison=comparison_options(request),
        toolchain=toolchain,
        second_runtime=excludes_second_runtime(request) is None,
    )


def _run_name(task: Task[..., Any], request: Request, start: int) -> str:
    """Return the name of the task run of a batch. `start`: the position of its first case."""
    return f"{task.name} {work_label('lower', request)} from {start}"


def _split(cases: OperatorCases) -> Iterator[tuple[int, OperatorCases]]:
    """Yield every batch with the position of its first case."""
    for start in range(0, len(cases.cases), BATCH):
        yield start, OperatorCases(cases=cases.cases[start : start + BATCH])
