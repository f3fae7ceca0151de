"""The check of a plan's models, of the overrides of its schemes, and of its operators. Nothing is compiled."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.overrides import stored_export, wrong_overrides
from qnnsweep.flows.cells.resources import Resources, prepare
from qnnsweep.flows.forecasts.operator_forecast import OperatorForecast, evidence_of, operator_forecasts
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError, ToolchainError
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.results.usability import AtlasEvidence
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCheck:
    """What is known about the cells of a plan before anything is compiled, in their order."""

    errors: Sequence[str | None]
    """The error of a cell's model or of its scheme's overrides; None if nothing is known to be wrong."""
    operators: Sequence[Sequence[OperatorForecast] | None] | None
    """The forecasts of a cell's operator calls; None if they are not known. None for all if there is no atlas."""


def check_plan(plan: Plan) -> PlanCheck:
    """Check every cell. Every model is created, and is exported on one sample."""
    resources = prepare(plan)
    make_importable(plan.folders)
    models = {digest(cell.request.model): cell.request.model for cell in plan.cells if _is_model(cell)}
    with ThreadPoolExecutor() as threads:
        errors = threads.map(lambda model: _error(model, resources.workers), models.values())
    error_of = dict(zip(models, errors, strict=True))
    exports: dict[tuple[str, str], ExportedModel | None] = {}

    def export(request: Request) -> ExportedModel | None:
        model = digest(request.model)
        key = model, request.toolchain.name
        if key not in exports and error_of[model] is None:
            exports[key] = stored_export(request, resources) or _exported(request, resources)
        return exports.get(key)

    errors = [
        override or (error_of[digest(cell.request.model)] if _is_model(cell) else None)
        for cell, override in zip(plan.cells, _override_errors(plan, resources, export), strict=True)
    ]
    return PlanCheck(errors=errors, operators=operator_forecasts(plan, evidence_of(plan), export))


def check_with_stored_exports(plan: Plan, evidence: Mapping[str, AtlasEvidence]) -> PlanCheck | None:
    """Check every cell whose model an earlier run has exported. No code of a model runs.

    `evidence`: of the store's atlases, by backend. Returns None if the environment has no toolchain that can check.
    """
    try:
        resources = prepare(plan)
    except EnvironmentUnusable:  # a run reports it
        return None
    make_importable(plan.folders)
    export = partial(stored_export, resources=resources)
    return PlanCheck(
        errors=_override_errors(plan, resources, export), operators=operator_forecasts(plan, evidence, export)
    )


def _override_errors(
    plan: Plan, resources: Resources, export: Callable[[Request], ExportedModel | None]
) -> Sequence[str | None]:
    errors = iter(wrong_overrides([cell.request for cell in plan.cells if _is_model(cell)], export, resources))
    of_cells = [next(errors) if _is_model(cell) else None for cell in plan.cells]
    return [None if error is None else str(error) for error in of_cells]


def _is_model(cell: PlannedCell) -> bool:
    """Return whether the cell is possible and has one model, and no collection of cases."""
    return cell.impossible is None and not cell.is_collection


def _error(model: ModelConfig, workers: WorkerPool) -> str | None:
    try:
        workers.call("export", entrypoints.check_model, model, subject=(model.name,))
    except (RequestError, ToolchainError) as error:
        return str(error)
    return None


def _exported(request: Request, resources: Resources) -> ExportedModel | None:
    """Return the exported model without storing it as a result; None if the export fails, which a run reports."""
    workers, model = resources.workers_of(request), request.model
    try:
        return workers.call("export", entrypoints.export_model, model, resources.store, subject=(model.name,)).value
    except (RequestError, ToolchainError):
        return None
