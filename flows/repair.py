"""The flow of one repair: it searches a scheme that reaches a target, and certifies this scheme on unseen samples.

Every step of the search is an ordinary cell, so that all of its results are cached. A repair that was interrupted
continues when it is repeated: the steps before the interruption come from the cache, and lead to the same decisions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from qnnsweep.conf.impossible import impossible_reason
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.repair_plan import planned
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.flows.cells.graph import ProgressCallback
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.runs.recipe import Recipe, write_recipe
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.flows.session import Session, begin, command, no_progress
from qnnsweep.tasks.records.repair_rows import CertificateRow
from qnnsweep.tasks.records.tables import by_columns
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.results.repair_rows import cells_of, certificate_rows, repair_rows
from qnnsweep.tasks.results.repair_search import Aim, Search, Step
from qnnsweep.tasks.results.unseen import unseen_samples
from qnnsweep.tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairResult:
    run: SweepResult
    search: Search
    certificate: Sequence[CertificateRow]
    recipe: Recipe


def run_repair(
    plan: Plan,
    line: Sequence[str],
    on_progress: ProgressCallback = no_progress,
    on_step: Callable[[Step], None] = lambda _step: None,
) -> RepairResult:
    """Search a scheme that reaches the target of a plan, which is one of `conf.repair_plan`; see `run_sweep`.

    `on_step`: is called with every step of the search. Raises the error of a cell whose cause is not in the cell.
    """
    with begin(plan, line, on_progress) as session:
        first = plan.cells[0].request
        assert first.searched_samples is not None, "the plan of a repair has it"
        search = Search(target=first.target, budget=first.budget, samples=range(first.searched_samples))
        search.run(first.scheme, partial(measured, session), on_step)
        unseen, left_out = _unseen(search, session.store)
        search.certify(unseen)
        certificate = list(certificate_rows(session.run_id, search.steps[0], search.accepted, unseen, left_out))
        rows = {
            "repair": [by_columns(row) for row in repair_rows(session.run_id, search.steps)],
            "certificate": [by_columns(row) for row in certificate],
        }
        result = session.finish([cell for step in search.steps for cell in cells_of(step)], rows)
        recipe = write_recipe(result.run, search, rows, session.store)
        return RepairResult(run=result, search=search, certificate=certificate, recipe=recipe)


@run_flow()
def repair(overrides: list[str], config_dirs: list[str] | None = None) -> RepairResult:
    """Search a scheme that reaches a target. `overrides`: as in `qnnsweep.flows.sweep.sweep`."""
    folders = [Path(folder) for folder in config_dirs or ()]
    return run_repair(planned(overrides, folders), command(overrides, folders, verb="repair"))


def measured(session: Session, scheme: SchemeConfig, aim: Aim | None = None) -> Sequence[CellResult]:
    """Run a scheme for every SoC of the session's plan. If it is impossible on an SoC, it is compiled for none.

    `aim`: the target for which changes are tried on the host, and those not to try; None to try none.

    Raises the error of a cell whose cause is not in the cell, because the scheme is not to blame for it.
    """
    first = session.plan.cells[0].request
    count = 0 if aim is None else first.measure.cures
    aim = aim or Aim(target=first.target, measured=())
    requests = [
        replace(
            cell.request,
            scheme=scheme,
            target=aim.target,
            measured_changes=[*aim.measured],
            measure=replace(cell.request.measure, cures=count),
        )
        for cell in session.plan.cells
    ]
    cells = [PlannedCell(request=request, impossible=impossible_reason(request)) for request in requests]
    impossible = next((cell for cell in cells if cell.impossible), None)
    if impossible is not None:
        other = f"not compiled, because it is impossible on {impossible.request.soc.name}: {impossible.impossible}"
        return [CellResult(request=cell.request, impossible=cell.impossible or other) for cell in cells]
    # Every step's overrides are made for the graph; only those of the user may not fit it.
    results = session.measure(cells, check_overrides=scheme == session.plan.cells[0].request.scheme)
    for cell in results:
        if judge(cell).outcome == "infrastructure" and cell.error is not None:
            raise cell.error
    return results


def _unseen(search: Search, store: Store) -> tuple[list[int], int]:
    """Return the samples that neither the calibration nor the search has used, and how many further ones are equal."""
    exported = search.steps[0].complete[0].exported
    if exported is None:
        return [], 0
    return unseen_samples(exported.methods, len(search.samples), store)
