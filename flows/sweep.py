"""The flow of one sweep. It runs all stages of a plan's cells, then writes the tables and the report."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from qnnsweep.conf.load import load
from qnnsweep.flows.resources import prepare
from qnnsweep.flows.run import RunStart, command, finish_run, loaded_plan, overrides_with_secrets, run_cells
from qnnsweep.flows.runs import flow_state, notifications, results
from qnnsweep.flows.runs.artifacts import create_artifacts
from qnnsweep.flows.runs.retention import apply_retention
from qnnsweep.flows.server import leases
from qnnsweep.flows.server.decorator import run_flow
from qnnsweep.tasks.storage import lock
from qnnsweep.tasks.storage.store import Store


@run_flow()
def sweep(overrides: list[str], config_dirs: list[str] | None = None) -> results.SweepResult:
    """Run every cell of a plan. `overrides` define the plan in Hydra's grammar; see `qnnsweep run --help`.

    Secrets may be masked in `overrides`, as long as `overrides_with_secrets` has the overrides without masks.

    Call it with `return_state=True` and `flow_state.returned`, because `prefect.fail_on` can make its state Failed.
    Raises RequestError for a wrong request, before any work. Raises EnvironmentUnusable for an unusable machine.
    """
    folders = [Path(folder) for folder in config_dirs or ()]
    plan = loaded_plan.get() or load(overrides_with_secrets.get() or overrides, config_dirs=folders)
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    notifiers = notifications.load_notifiers(plan.trend.notify)
    with lock.shared(store), _frozen_gc():
        run_start = RunStart.now()
        flow_state.tag_request(plan)
        resources = prepare(plan, device_lock=leases.exclusive)
        done = run_cells(plan, resources, run_start.run_id, check_overrides=True)
        run = run_start.compiled_facts(resources, done.reused, command(overrides, folders))
        result = finish_run(run, done, resources, trend=plan.trend, costs=resources.costs)
        create_artifacts(result, store, plan.prefect.reports_url)
    notifications.send(notifiers, result, store)
    apply_retention(plan.retention, store, run_start.run_id)
    return flow_state.end_state(result, plan.prefect.fail_on)


@contextmanager
def _frozen_gc() -> Generator[None]:
    """Freeze existing objects, so that the garbage collector scans only objects that this sweep allocates."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
