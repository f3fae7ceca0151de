"""The graph of one sweep: what runs on what, and what is shared because it is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.utilities.annotations import opaque

from conf.impossible import can_run_on
from conf.names import CELL_STAGES, MEASURE_STEPS, METRICS, OPERATOR_REFERENCES
from conf.plan import PlannedCell
from conf.schema import BackendKind, MeasureConfig, Request, Reuse, ToleranceConfig
from flows.resources import Resources
from tasks.bundle import bundle_task
from tasks.compare import compare_task
from tasks.export import export_task
from tasks.lower import lower_task
from tasks.measure import measure_task
from tasks.numerics.verdict import of_scheme
from tasks.quantize import quantize_task
from tasks.results.outcome import CellResult
from tasks.stage import configure_task, is_reused, result_name
from tasks.storage.digest import digest
from tasks.toolchain.source_digest import code_digest, functions_digest

Watch = Callable[[str, str, str], None]
"""Called with a stage, its label (see `work_label`) and its new state (see `tasks.stage.OnChange`)."""


def work_label(stage: str, request: Request) -> str:
    """Return the label of a stage's work. Cells that share the work share the label."""
    qnn = request.backend.kind is BackendKind.qnn
    target = request.soc.name if qnn else request.backend.name
    if stage == "export":
        names = [request.model.name]
    elif stage == "quantize":
        names = [request.model.name, request.scheme.name, *([] if qnn else [request.backend.name])]
    elif stage == "lower":
        names = [request.model.name, request.scheme.name, target]
    else:
        names = [request.model.name, request.scheme.name, target]
        names += [] if request.where == "local" else [request.where]
    return " · ".join(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A submitted piece of work. Two that compute the same from the same have one key."""

    key: str
    future: PrefectFuture[Any]


class Graph:
    """Submits each piece of work once, whichever cell asks for it first."""

    def __init__(self, resources: Resources, watch: Watch, run_id: str) -> None:
        self._resources = resources
        self._run_id = run_id
        self._watch = watch
        self._submissions: dict[str, Submission] = {}
        self._started_stages: set[tuple[str, str]] = set()
        self._codes: dict[str, str] = {}

    def export(self, request: Request) -> Submission:
        model = digest(request.model)
        if model not in self._codes:  # read once a sweep: its cells must agree, whatever is edited meanwhile
            self._codes[model] = code_digest(request.model)
        return self._submit(export_task, request, request.model, self._codes[model], children=self._resources.children)

    def cell(self, request: Request) -> dict[str, Submission]:
        """All of a cell's work, by the record of `CellResult` that it gives."""
        kind, scheme, children = request.backend.kind, request.scheme, self._resources.children
        soc = request.soc if kind is BackendKind.qnn else None
        exported = self.export(request)
        quantized = self._submit(quantize_task, request, exported, scheme, kind, children=children)
        ask = request.measure
        asked = (ask.operator_samples, ask.dump_operators, ask.profile_level, other_references(ask))
        lowered = self._submit(lower_task, request, quantized, scheme, kind, soc, *asked, children=children)
        bundle = self._submit(bundle_task, request, lowered, request.measure)
        capture = self._submit(
            measure_task,
            request,
            bundle,
            tuple(device for device in request.devices if can_run_on(device, request)),
            soc,
            children.identity,
            self._run_id,
            farm=self._resources.farm,
            step=lambda task: self._configure_task(task, request),
        )
        comparison = self._submit(compare_task, request, lowered, capture, *judged_by(request), children=children)
        return {
            "exported": exported,
            "quantized": quantized,
            "lowered": lowered,
            "bundle": bundle,
            "capture": capture,
            "comparison": comparison,
        }

    def result(self, planned: PlannedCell, submissions: dict[str, Submission]) -> CellResult:
        """Wait for a cell's work and say what became of it: the records of all stages up to the first that failed."""
        code = self._codes.get(digest(planned.request.model))
        cell = CellResult(request=planned.request, impossible=planned.impossible, code=code)
        for record, submission in submissions.items():
            answer, cell.error = await_result(submission.future)
            if cell.error is not None:
                break
            setattr(cell, record, answer)
            if (name := result_name(submission.future.state)) is not None:
                cell.result_names[record] = name
        started = [
            stage for stage in CELL_STAGES if (stage, work_label(stage, planned.request)) in self._started_stages
        ]
        cell.stage = started[-1] if submissions and started else None
        return cell

    @property
    def reused(self) -> int:
        """How many results came from the cache."""
        return sum(is_reused(submission.future.state) for submission in self._submissions.values())

    @property
    def result_names(self) -> dict[str, bool]:
        """The names of the results that it found or made, and whether they were found."""
        states = [submission.future.state for submission in self._submissions.values()]
        return {name: is_reused(state) for state in states if (name := result_name(state)) is not None}

    def _submit(self, task: Task[..., Any], request: Request, *key_inputs: Any, **resources: Any) -> Submission:
        key = digest([task.name, *(each.key if isinstance(each, Submission) else each for each in key_inputs)])
        if key not in self._submissions:
            # Opaque: Prefect walks through every value of a result, and asks its server for the state of a bare future.
            values = [opaque(each.future) if isinstance(each, Submission) else each for each in key_inputs]
            future = self._configure_task(task, request).submit(*values, store=self._resources.store, **resources)
            self._submissions[key] = Submission(key=key, future=future)
        return self._submissions[key]

    def _configure_task(self, task: Task[..., Any], request: Request) -> Task[..., Any]:
        label = work_label(task.name, request)

        def on_change(state: str) -> None:
            # A capture that is reused is its three steps.
            for name in MEASURE_STEPS if (task.name, state) == ("measure", "reused") else (task.name,):
                self._started_stages.add((name, label))
                self._watch(name, label, state)

        refresh = task.name == "measure" and request.reuse is not Reuse.capture
        return configure_task(
            task, f"{task.name} {label}", store=self._resources.store, on_change=on_change, refresh=refresh
        )


def judged_by(request: Request) -> tuple[bool, ToleranceConfig, bool, tuple[str, ...], tuple[str, ...], str]:
    """What `compare` is told besides the lowering and the capture: of the tolerance what is about its operators."""
    ask, metrics = request.measure, tuple(dict.fromkeys(request.measure.metrics))
    own = [name for name in metrics if name not in METRICS]
    tolerance = ToleranceConfig(name="", operators=of_scheme(request.tolerance.operators, request.scheme.name))
    code = functions_digest(own) if own else ""
    return request.model.classifier, tolerance, ask.replay, metrics, other_references(ask), code


def await_result(future: PrefectFuture[Any]) -> tuple[Any, BaseException | None]:
    """Wait for the work: its answer, or why it has none."""
    future.wait()
    answer = future.state.result(raise_on_failure=False)
    if future.state.is_completed():
        return answer, None
    return None, answer if isinstance(answer, BaseException) else RuntimeError(str(future.state))


def other_references(measure: MeasureConfig) -> tuple[str, ...]:
    """Those besides the edge graph, in an order that does not depend on how they were asked for."""
    return tuple(each for each in OPERATOR_REFERENCES if each in measure.references and each != "edge")
