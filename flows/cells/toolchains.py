"""The start of the fork servers that a plan needs. This module imports no heavy library, so that they start early."""

from contextlib import suppress

from qnnsweep.conf.plan import Plan
from qnnsweep.conf.schema import Reuse
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
from qnnsweep.tasks.toolchain.workers.server import fork_server

MODULES_OF_CALLS = ("qnnsweep.tasks.comparison.capture",)
"""What a fork server imports once for all calls, in addition to the modules of the toolchain."""


def start_servers(plan: Plan) -> None:
    """Start the fork server of every toolchain that a cell may need, and do not wait for its imports.

    If the store has results, they may be all that is needed: then the server is started that compiles nothing.
    If a server cannot be started, nothing is raised: `flows.cells.resources.prepare` says what this machine lacks.
    """
    cells = [cell.request for cell in plan.cells if cell.impossible is None and cell.request.reuse is not Reuse.capture]
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    has_results = not store.url and any(store.root.joinpath("results").glob("*"))
    for toolchain in {request.toolchain.name: request.toolchain for request in cells}.values():
        with suppress(EnvironmentUnusable, OSError):
            environment, *_ = toolchain_of(toolchain)
            fork_server(environment, MODULES_OF_CALLS, compiles=not has_results).started()
