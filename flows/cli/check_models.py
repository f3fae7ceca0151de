"""The check of a plan's models: each model is created and runs on a sample, and nothing is compiled."""

from concurrent.futures import ThreadPoolExecutor

from conf.backends import make_importable
from conf.models import ModelConfig
from conf.plan import Plan
from flows.resources import prepare
from tasks.errors import RequestError, ToolchainError
from tasks.storage.digest import digest
from tasks.toolchain import entrypoints
from tasks.toolchain.workers.pool import WorkerPool


def model_errors(plan: Plan) -> list[str | None]:
    """Return, for each cell of the plan, the error of its model; None if the model runs or the cell is impossible."""
    possible = [cell.request.model for cell in plan.cells if cell.impossible is None]
    models = {digest(model): model for model in possible}
    workers = prepare(plan).workers
    make_importable(plan.folders)
    with ThreadPoolExecutor() as threads:
        errors = threads.map(lambda model: _error(model, workers), models.values())
    error_of = dict(zip(models, errors, strict=True))
    return [None if cell.impossible else error_of[digest(cell.request.model)] for cell in plan.cells]


def _error(model: ModelConfig, workers: WorkerPool) -> str | None:
    try:
        workers.call("export", entrypoints.check_model, model, subject=(model.name,))
    except (RequestError, ToolchainError) as error:
        return str(error)
    return None
