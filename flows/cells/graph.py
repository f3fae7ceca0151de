"""The graph of one sweep: the stages whose results each stage uses, and the work that cells share."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.utilities.annotations import opaque

from qnnsweep.conf.impossible import can_run_on
from qnnsweep.conf.names import (
    CELL_STAGES,
    MEASURE_STEPS,
    METRICS,
    OPERATOR_REFERENCES,
    SHIPPED_BACKENDS,
    WORKER_STAGES,
    OperatorReference,
)
from qnnsweep.conf.plan import PlannedCell
from qnnsweep.conf.schema import MeasureConfig, Request, Reuse, SocConfig
from qnnsweep.conf.schemes import Precision
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.flows.forecasts.costs import StageWork, stages_of, work_label
from qnnsweep.tasks.bundle import bundle_task
from qnnsweep.tasks.compare import compare_task
from qnnsweep.tasks.comparison.division import next_divisions
from qnnsweep.tasks.cure import cure_task
from qnnsweep.tasks.divide import divide_task
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.export import export_task
from qnnsweep.tasks.lower import lower_task
from qnnsweep.tasks.measure import measure_task
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.quantize import quantize_task
from qnnsweep.tasks.records import Division
from qnnsweep.tasks.records.options import ComparisonOptions, LoweringOptions
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.stage import Upstream, configure_task, is_reused, result_name
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain.backends.select import backend_code, backend_of
from qnnsweep.tasks.toolchain.source_digest import code_digest, functions_digest

Codes = dict[str, str | RequestError]
"""Maps the digest of a model to the digest of the model's code and files, or to the error if they cannot be read."""
ProgressCallback = Callable[[str, str, str], None]
"""A function that is called with a stage, its label (see `work_label`) and its state.

The states are those of `qnnsweep.tasks.stage.OnChange`, and `queued`: the task of a worker runs, but waits for a core.
Before a state `failed`, the function is called with the stage `REASON`.
"""
REASON = "reason"
"""The stage of the progress updates whose label says why a stage has failed."""
_QUEUED = {("running", stage) for stage in WORKER_STAGES}
_OUTSIDE_WORKERS = ("bundle", *MEASURE_STEPS)
"""The stages whose durations are not those of toolchain calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A stage that was submitted to Prefect. Submissions of the same stage with the same inputs have the same key."""

    key: str
    future: PrefectFuture[Any]
    label: str
    """The name of the task run."""


class Graph:
    """The submissions of one sweep. Cells whose stages have the same inputs share one submission."""

    def __init__(
        self, resources: Resources, on_progress: ProgressCallback, run_id: str, codes: Codes | None = None
    ) -> None:
        """`codes`: see `Codes`. Graphs of one run can share them."""
        self._resources = resources
        self._run_id = run_id
        self._on_progress = on_progress
        self._submissions: dict[str, Submission] = {}
        self._started_stages: dict[StageWork, float] = {}
        """When the work of a stage began or was reused, on the monotonic clock."""
        self._seconds: dict[StageWork, float] = {}
        """The durations of the work outside of workers. A result of a cell takes them from here."""
        self._codes: Codes = {} if codes is None else codes
        self._backend_code = cache(backend_code)  # once per sweep, like the digests of the models' code

    def code_error(self, request: Request) -> RequestError | None:
        """Return the error of a model whose code or files cannot be read. No stage of such a model can be submitted."""
        code = self._code(request)
        return code if isinstance(code, RequestError) else None

    def export(self, request: Request) -> Submission:
        workers = self._resources.workers_of(request)
        return self._submit(export_task, request, request.model, self._code(request), workers=workers)

    def forget(self, submission: Submission) -> None:
        """Forget a stage that has ended with an error, so that it runs again if it is submitted again."""
        del self._submissions[submission.key]

    def cell(self, request: Request) -> dict[str, Submission]:
        """Submit all stages of a cell. Map `CellResult`'s fields to the submissions of the results they will hold."""
        kind, workers = request.backend.kind, self._resources.workers_of(request)
        code = self._backend_code(kind)
        exported = self.export(request)
        quantized = self._submit(quantize_task, request, exported, request.scheme, kind, code, workers=workers)
        options = lowering_options(request, code)
        lowered = self._submit(lower_task, request, quantized, soc_of(request), options, workers=workers)
        return {"exported": exported, "quantized": quantized, "lowered": lowered} | self._measured(request, lowered)

    def divide_again(self, cell: CellResult, before: dict[str, Submission]) -> dict[str, Submission] | None:
        """Submit the stages of a measured cell again whose debug programs do not serve, with more debug programs.

        `before`: the submissions of the cell. Return None if its debug programs serve, or if more of them do not help.
        """
        request = cell.request
        if cell.error is not None or cell.lowered is None or cell.capture is None:
            return None
        if not backend_of(request.backend.kind).logs_parts:
            return None
        most = request.measure.debug_programs
        is_float = request.scheme.precision is not Precision.quantized
        divisions = next_divisions(cell.lowered, cell.capture, most, self._resources.store, is_float=is_float)
        return None if divisions is None else self.divided(request, before, divisions)

    def divided(
        self, request: Request, before: dict[str, Submission], divisions: tuple[Division | None, ...]
    ) -> dict[str, Submission]:
        """Submit the stages of a cell from its lowered program on, with the operators divided among debug programs.

        `before`: the submissions of the cell with other debug programs.
        """
        options = lowering_options(request, self._backend_code(request.backend.kind))
        given = before["lowered"], before["quantized"], soc_of(request), options, divisions
        lowered = self._submit(divide_task, request, *given, workers=self._resources.workers_of(request))
        return before | {"lowered": lowered} | self._measured(request, lowered)

    def _measured(self, request: Request, lowered: Submission) -> dict[str, Submission]:
        """Submit the stages of a cell that follow the lowered program."""
        soc, workers = soc_of(request), self._resources.workers_of(request)
        devices = tuple(device for device in request.devices if can_run_on(device, request))
        is_divided = any(device.runner.divides for device in devices)
        bundle = self._submit(bundle_task, request, lowered, request.measure, is_divided)
        capture = self._submit(
            measure_task,
            request,
            bundle,
            devices,
            soc,
            workers.identity,
            self._run_id,
            farm=self._resources.farm_of(request),
            step=partial(self._measure_step, work_label("measure", request)),
        )
        comparison = self._submit(compare_task, request, lowered, capture, comparison_options(request), workers=workers)
        changes = (
            request.scheme,
            request.backend.kind,
            soc,
            request.most_cures,
            request.target,
            request.measured_changes,
        )
        cures = self._submit(cure_task, request, lowered, comparison, *changes, workers=workers)
        return {"bundle": bundle, "capture": capture, "comparison": comparison, "cures": cures}

    def result(self, planned: PlannedCell, submissions: dict[str, Submission]) -> CellResult:
        """Wait for a cell's stages. Return the records up to the first failed stage, and the error of that stage."""
        cell = CellResult(request=planned.request, impossible=planned.impossible)
        if planned.impossible is None:
            cell.toolchain = self._resources.workers_of(planned.request).identity
            code = self._code(planned.request)
            if isinstance(code, RequestError):
                cell.stage, cell.error = "export", code
                return cell
            cell.code = code
        for record, submission in submissions.items():
            result, cell.error = await_result(submission.future)
            if cell.error is not None:
                break
            setattr(cell, record, result)
            if (name := result_name(submission.future.state)) is not None:
                cell.result_names[record] = name
        started = [stage for stage in CELL_STAGES if (stage, work_label(stage, cell.request)) in self._started_stages]
        cell.stage = started[-1] if submissions and started else None
        cell.seconds = {
            stage: self._seconds.pop(work)
            for stage in CELL_STAGES
            if (work := (stage, work_label(stage, cell.request))) in self._seconds
        }
        return cell

    @property
    def reused(self) -> int:
        """The number of results that came from the cache."""
        return sum(is_reused(submission.future.state) for submission in self._submissions.values())

    @property
    def result_names(self) -> dict[str, bool]:
        """Maps the name of every cached result of this sweep to True if it was reused, to False if it was computed."""
        return result_names(submission.future for submission in self._submissions.values())

    def _code(self, request: Request) -> str | RequestError:
        """Return the digest of the model's code and files, or the error if they cannot be read."""
        model = digest(request.model)
        if model not in self._codes:  # once per sweep: all cells must use the same code, even if a file changes
            try:
                self._codes[model] = code_digest(request.model)
            except RequestError as error:
                self._codes[model] = error
        return self._codes[model]

    def _submit(self, task: Task[..., Any], request: Request, *inputs: Any, **resources: Any) -> Submission:
        key = digest(
            [
                task.name,
                request.toolchain.name,
                *(value.key if isinstance(value, Submission) else value for value in inputs),
            ]
        )
        if key not in self._submissions:
            # Without `opaque` Prefect would search every value of a result for futures, and would ask its server for
            # the state of a bare future.
            awaited = {
                id(value): Upstream(value.future, value.label) for value in inputs if isinstance(value, Submission)
            }
            values = [opaque(awaited[id(value)]) if id(value) in awaited else value for value in inputs]
            if "workers" in resources:
                on_start = partial(self._on_progress, _shown(task), work_label(task.name, request), "running")
                resources["workers"] = resources["workers"].reporting(on_start)
            configured = self._configure_task(task, request, [*awaited.values()])
            future = configured.submit(*values, store=self._resources.store, **resources)
            label = f"{task.name} {work_label(task.name, request)}"
            self._submissions[key] = Submission(key=key, future=future, label=label)
        return self._submissions[key]

    def _configure_task(
        self, task: Task[..., Any], request: Request, inputs: Sequence[Upstream] = ()
    ) -> Task[..., Any]:
        label = work_label(task.name, request)

        def on_change(state: str) -> None:
            if task.name == "cure" and task.name not in stages_of(request):
                return
            # If the capture is reused, so are its steps deploy, execute and collect.
            for name in MEASURE_STEPS if (task.name, state) == ("measure", "reused") else (_shown(task),):
                self._report(name, label, "queued" if (state, name) in _QUEUED else state)

        refresh = task.name == "measure" and request.reuse is not Reuse.capture
        return configure_task(
            task,
            f"{task.name} {label}",
            store=self._resources.store,
            on_change=on_change,
            on_error=lambda error: self._on_progress(REASON, f"{task.name} {label}: {error}", "failed"),
            refresh=refresh,
            inputs=inputs,
        )

    @contextmanager
    def _measure_step(self, label: str, name: str) -> Iterator[None]:
        """Report a step of `measure` as a stage of its own, and in the log of the task run."""
        self._report(name, label, "running")
        try:
            yield
        except Exception as error:
            self._report(name, label, "failed")
            get_run_logger().error("%s failed: %s", name, error)
            raise
        self._report(name, label, "done")
        get_run_logger().info("%s done", name)

    def _report(self, name: str, label: str, state: str) -> None:
        """Call the progress callback. If work outside of workers is done, note its duration, which no call has."""
        now = time.monotonic()
        if state == "done" and name in _OUTSIDE_WORKERS:
            self._seconds[name, label] = now - self._started_stages[name, label]
        self._started_stages[name, label] = now
        self._on_progress(name, label, state)


def soc_of(request: Request) -> SocConfig | None:
    """Return the SoC that the program of a cell depends on; None if it depends on none."""
    return request.soc if backend_of(request.backend.kind).needs_soc else None


def _shown(task: Task[..., Any]) -> str:
    """Return the stage whose progress is shown when a task runs. `divide` compiles, as `lower` does."""
    return "lower" if task.name == "divide" else task.name


def lowering_options(request: Request, backend_code: str = "") -> LoweringOptions:
    """Return the inputs of `lower`, other than the quantized model and the SoC, that determine the stage's result."""
    return LoweringOptions(
        scheme=request.scheme,
        kind=request.backend.kind,
        operator_samples=request.measure.operator_samples,
        choosable=request.searched_samples,
        dump_operators=request.measure.dump_operators,
        profile_level=request.measure.profile_level,
        references=other_references(request.measure),
        backend_code=backend_code,
    )


def comparison_options(request: Request) -> ComparisonOptions:
    """Return those values of the request that determine the result of `compare`. The cache key includes no others."""
    measure = request.measure
    metrics = tuple(dict.fromkeys(measure.metrics))
    own_code = [name for name in metrics if name not in METRICS]
    own_backend = None if request.backend.kind in SHIPPED_BACKENDS else request.backend.kind
    if own_backend is not None:
        own_code.append(own_backend)  # this code interprets the names of the backend's profiling events
    return ComparisonOptions(
        classifier=request.model.classifier,
        tolerances=of_scheme(request.tolerance.operators, request.scheme.name),
        replay=measure.replay,
        budget=measure.replay and measure.budget,
        metrics=metrics,
        references=other_references(measure),
        own_code=functions_digest(own_code) if own_code else "",
        own_backend=own_backend,
    )


def result_names(futures: Iterable[PrefectFuture[Any]]) -> dict[str, bool]:
    """Map the name of every cached result of these futures to True if it was reused, to False if it was computed."""
    states = [future.state for future in futures]
    return {name: is_reused(state) for state in states if (name := result_name(state)) is not None}


def await_result(future: PrefectFuture[Any]) -> tuple[Any, BaseException | None]:
    """Wait for a future. Return its result and None if it completed, otherwise None and its error."""
    future.wait()
    result = future.state.result(raise_on_failure=False)
    if future.state.is_completed():
        return result, None
    return None, result if isinstance(result, BaseException) else RuntimeError(str(future.state))


def other_references(measure: MeasureConfig) -> tuple[OperatorReference, ...]:
    """Return the requested references except the edge graph, in the order of `OPERATOR_REFERENCES`."""
    return tuple(name for name in OPERATOR_REFERENCES if name in measure.references and name != "edge")
