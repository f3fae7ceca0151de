"""One sweep: all stages of a plan's cells, then the tables and the report."""

from collections.abc import Sequence
from pathlib import Path

from qnnsweep.conf.load import load
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.cells.graph import ProgressCallback
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.flows.session import begin, command, no_progress


def run_sweep(plan: Plan, line: Sequence[str], on_progress: ProgressCallback = no_progress) -> SweepResult:
    """Run every cell of a plan. `line`: the command line that repeats the run.

    Raises RequestError for a wrong request, before any work. Raises EnvironmentUnusable for an unusable machine.
    """
    with begin(plan, line, on_progress) as session:
        return session.finish(session.measure(plan.cells, check_overrides=True))


@run_flow()
def sweep(overrides: list[str], config_dirs: list[str] | None = None) -> SweepResult:
    """Run every cell of a plan. `overrides` define the plan in Hydra's grammar; see `qnnsweep run --help`."""
    folders = [Path(folder) for folder in config_dirs or ()]
    return run_sweep(load(overrides, config_dirs=folders), command(overrides, folders))
