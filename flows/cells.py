"""The graph of one sweep: what runs on what, and what is shared because it is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture

from conf.check import REFERENCES
from conf.impossible import suits
from conf.plan import PlannedCell
from conf.schema import BackendKind, MeasureConfig, Precision, Request, ToleranceConfig
from tasks.bundle import bundle_task
from tasks.compare import compare_task
from tasks.devices.farm import Farm
from tasks.export import export_task
from tasks.lower import lower_task
from tasks.measure import measure_task
from tasks.outcome import CellResult
from tasks.quantize import quantize_task
from tasks.stage import bound, is_reused
from tasks.storage.digest import digest
from tasks.storage.store import Store
from tasks.toolchain.child import Children
from tasks.toolchain.source import code_digest

STAGES = ("export", "quantize", "lower", "bundle", "deploy", "execute", "collect", "compare")

Watch = Callable[[str, str, str], None]
"""Told a stage, its subject (see `subject`) and how it goes (see `tasks.stage.OnChange`)."""


def subject(stage: str, request: Request) -> str:
    """Whose work a stage is: a model's, a model's and a scheme's, … What is shared has one subject."""
    qnn = request.backend.kind is BackendKind.qnn
    target = request.soc.name if qnn else request.backend.name
    if stage == "export":
        names = [request.model.name]
    elif stage == "quantize":
        arch = _arch(request)
        names = [request.model.name, request.scheme.name]
        names += [f"v{arch}"] if arch else [] if qnn else [request.backend.name]
    elif stage == "lower":
        names = [request.model.name, request.scheme.name, target]
    else:
        names = [request.model.name, request.scheme.name, target]
        names += [] if request.where == "local" else [request.where]
    return " · ".join(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """What the stages of one sweep work with."""

    store: Store
    children: Children
    farm: Farm


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A submitted piece of work. Two that compute the same from the same have one key."""

    key: str
    future: PrefectFuture[Any]


class Graph:
    """Submits each piece of work once, whichever cell asks for it first."""

    def __init__(self, means: Means, watch: Watch) -> None:
        self._means = means
        self._watch = watch
        self._works: dict[str, Work] = {}
        self._begun: set[tuple[str, str]] = set()
        self._codes: dict[str, str] = {}

    def export(self, request: Request) -> Work:
        model = digest(request.model)
        if model not in self._codes:  # read once a sweep: its cells must agree, whatever is edited meanwhile
            self._codes[model] = code_digest(request.model)
        return self._submit(export_task, request, request.model, self._codes[model], children=self._means.children)

    def cell(self, request: Request) -> dict[str, Work]:
        """All of a cell's work, by the record of `CellResult` that it gives."""
        kind, scheme, children = request.backend.kind, request.scheme, self._means.children
        soc = request.soc if kind is BackendKind.qnn else None
        exported = self.export(request)
        quantized = self._submit(quantize_task, request, exported, scheme, kind, _arch(request), children=children)
        ask = request.measure
        asked = (ask.operator_samples, ask.dump_operators, ask.profile_level, other_references(ask))
        lowered = self._submit(lower_task, request, quantized, scheme, kind, soc, *asked, children=children)
        bundle = self._submit(bundle_task, request, lowered, request.measure)
        capture = self._submit(
            measure_task,
            request,
            bundle,
            tuple(each for each in request.devices if suits(each, request)),
            soc,
            farm=self._means.farm,
            step=lambda task: self._bound(task, request),
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

    def result(self, planned: PlannedCell, works: dict[str, Work]) -> CellResult:
        """Wait for a cell's work and say what became of it: the records of all stages up to the first that failed."""
        code = self._codes.get(digest(planned.request.model))
        cell = CellResult(request=planned.request, impossible=planned.impossible, code=code)
        for record, work in works.items():
            answer, cell.error = settled(work.future)
            if cell.error is not None:
                break
            setattr(cell, record, answer)
        begun = [stage for stage in STAGES if (stage, subject(stage, planned.request)) in self._begun]
        cell.stage = begun[-1] if works and begun else None
        return cell

    @property
    def reused(self) -> int:
        """How many results came from the cache."""
        return sum(is_reused(work.future.state) for work in self._works.values())

    def _submit(self, task: Task[..., Any], request: Request, *matter: Any, **means: Any) -> Work:
        key = digest([task.name, *(each.key if isinstance(each, Work) else each for each in matter)])
        if key not in self._works:
            values = [each.future if isinstance(each, Work) else each for each in matter]
            future = self._bound(task, request).submit(*values, store=self._means.store, **means)
            self._works[key] = Work(key=key, future=future)
        return self._works[key]

    def _bound(self, task: Task[..., Any], request: Request) -> Task[..., Any]:
        whose = subject(task.name, request)

        def on_change(state: str) -> None:
            self._begun.add((task.name, whose))
            self._watch(task.name, whose, state)

        return bound(task, f"{task.name} {whose}", store=self._means.store, on_change=on_change)


def judged_by(request: Request) -> tuple[bool, ToleranceConfig, bool, tuple[str, ...], tuple[str, ...]]:
    """What `compare` is told besides the lowering and the capture."""
    ask = request.measure
    return request.model.classifier, request.tolerance, ask.replay, tuple(ask.metrics), other_references(ask)


def settled(future: PrefectFuture[Any]) -> tuple[Any, BaseException | None]:
    """Wait for the work: its answer, or why it has none."""
    future.wait()
    answer = future.state.result(raise_on_failure=False)
    if future.state.is_completed():
        return answer, None
    return None, answer if isinstance(answer, BaseException) else RuntimeError(str(future.state))


def other_references(measure: MeasureConfig) -> tuple[str, ...]:
    """Those besides the edge graph, in an order that does not depend on how they were asked for."""
    return tuple(each for each in REFERENCES if each in measure.references and each != "edge")


def _arch(request: Request) -> int | None:
    """The architecture that a quantizer must know; None where nothing is quantized for one."""
    if request.backend.kind is BackendKind.qnn and request.scheme.precision is Precision.quantized:
        return request.soc.arch
    return None
