"""The check of a plan's models and of the overrides of its schemes. Nothing is compiled."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from conf.backends import make_importable
from conf.models import ModelConfig
from conf.plan import Plan
from conf.schema import Request
from flows.overrides import stored_export, wrong_overrides
from flows.resources import Resources, prepare
from tasks.errors import EnvironmentUnusable, RequestError, ToolchainError
from tasks.records import ExportedModel
from tasks.storage.digest import digest
from tasks.toolchain import entrypoints
from tasks.toolchain.workers.pool import WorkerPool


def cell_errors(plan: Plan) -> Sequence[str | None]:
    """Return, for each cell, the error of its model or of its scheme's overrides; None if nothing is wrong.

    Every model is created, runs on a sample, and is exported if a scheme has overrides.
    """
    resources = prepare(plan)
    make_importable(plan.folders)
    models = {digest(cell.request.model): cell.request.model for cell in plan.cells if cell.impossible is None}
    with ThreadPoolExecutor() as threads:
        errors = threads.map(lambda model: _error(model, resources.workers), models.values())
    error_of = dict(zip(models, errors, strict=True))

    def export(request: Request) -> ExportedModel | None:
        is_wrong = error_of[digest(request.model)] is not None
        return None if is_wrong else stored_export(request, resources) or _exported(request, resources)

    return [
        override or (None if cell.impossible else error_of[digest(cell.request.model)])
        for cell, override in zip(plan.cells, _override_errors(plan, resources, export), strict=True)
    ]


def known_override_errors(plan: Plan) -> Sequence[str | None]:
    """Return, for each cell, the error of its scheme's overrides, if an earlier run has exported its model."""
    try:
        resources = prepare(plan)
    except EnvironmentUnusable:  # a run reports it
        return [None] * len(plan.cells)
    make_importable(plan.folders)
    return _override_errors(plan, resources, lambda request: stored_export(request, resources))


def _override_errors(
    plan: Plan, resources: Resources, export: Callable[[Request], ExportedModel | None]
) -> Sequence[str | None]:
    errors = iter(wrong_overrides([cell.request for cell in plan.cells if not cell.impossible], export, resources))
    of_cells = [None if cell.impossible else next(errors) for cell in plan.cells]
    return [None if error is None else str(error) for error in of_cells]


def _error(model: ModelConfig, workers: WorkerPool) -> str | None:
    try:
        workers.call("export", entrypoints.check_model, model, subject=(model.name,))
    except (RequestError, ToolchainError) as error:
        return str(error)
    return None


def _exported(request: Request, resources: Resources) -> ExportedModel | None:
    """Return the exported model without storing it as a result; None if torch.export fails, which a run reports."""
    workers, model = resources.workers_of(request), request.model
    try:
        return workers.call("export", entrypoints.export_model, model, resources.store, subject=(model.name,)).value
    except ToolchainError:
        return None
