"""What a fork server has imported: a worker that compiles nothing does not wait for ExecuTorch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import comparison_options
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.records import Capture, LoweredProgram
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk, identity
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.scheduler import Scheduler
from qnnsweep.tasks.toolchain.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

HAS_EXECUTORCH = "'executorch.exir' in __import__('sys').modules"


@pytest.fixture(scope="module")
def workers(resources: Resources) -> WorkerPool:
    """Workers with fork servers of their own, none of which has been started."""
    sdk = find_sdk(os.environ)
    supervisor = Supervisor(
        environment=sdk.environment(os.environ) | {"QNNSWEEP_TEST": __name__},
        store=resources.store,
        scheduler=Scheduler(parallel=2, memory_bytes=2**36),
        deadline_s=120,
        memory_bytes=2**33,
    )
    return WorkerPool(identity(sdk), supervisor)


def test_a_comparison_has_the_same_result_in_a_process_that_has_not_imported_executorch(
    workers: WorkerPool, resources: Resources, request_8a8w: Request, lowered: LoweredProgram, capture: Capture
) -> None:
    options = comparison_options(request_8a8w)
    alone = compare(lowered, capture, options, store=resources.store, workers=workers)
    assert not workers.call("compare", eval, HAS_EXECUTORCH, compiles=False).value
    assert alone == compare(lowered, capture, options, store=resources.store, workers=resources.workers)


def test_the_server_that_compiles_is_used_for_everything_once_it_has_been_started(resources: Resources) -> None:
    for compiles in (True, False):
        assert resources.workers.call("compare", eval, HAS_EXECUTORCH, compiles=compiles).value
