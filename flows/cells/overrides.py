"""The overrides of schemes against the graphs of exported models, before anything is calibrated or compiled."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.tasks.errors import RequestError, ToolchainError
from qnnsweep.tasks.export import export_task
from qnnsweep.tasks.quantize import quantize_task
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.stage import stored_result
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.backends.select import backend_code
from qnnsweep.tasks.toolchain.source_digest import code_digest


def wrong_overrides(
    requests: Sequence[Request], export: Callable[[Request], ExportedModel | None], resources: Resources
) -> list[RequestError | None]:
    """Return, for each request, the error of an override that does not fit the model; None if all fit.

    `export`: returns the exported model of a request; None if there is none, so that nothing can be checked.
    """
    different = {_key(request): request for request in requests if request.scheme.overrides}
    if not different:
        return [None] * len(requests)
    with ThreadPoolExecutor() as threads:
        errors = threads.map(lambda request: _error(request, export(request), resources), different.values())
    error_of = dict(zip(different, errors, strict=True))
    return [error_of.get(_key(request)) for request in requests]


def stored_export(request: Request, resources: Resources) -> ExportedModel | None:
    """Return the exported model of a request if it is in the store."""
    workers = resources.workers_of(request)
    with suppress(RequestError):  # a run reports it
        code = code_digest(request.model)
        return stored_result(export_task, workers.identity, request.model, code, store=resources.store)
    return None


def _key(request: Request) -> str:
    return digest([request.model, request.scheme, request.backend.kind, request.toolchain.name])


def _error(request: Request, exported: ExportedModel | None, resources: Resources) -> RequestError | None:
    workers, store, kind = resources.workers_of(request), resources.store, request.backend.kind
    arguments = exported, request.scheme, kind
    # What was quantized has overrides that fit.
    if exported is None or stored_result(quantize_task, workers.identity, *arguments, backend_code(kind), store=store):
        return None
    try:
        workers.call("quantize", entrypoints.check_overrides, *arguments, store, subject=(request.model.name,))
    except RequestError as error:
        return error
    except ToolchainError:  # of another cause, with which the stage `quantize` fails, too
        return None
    return None
