"""The flow of one repair: it searches a scheme that reaches a target, and certifies this scheme on unseen samples.

Every step of the search is an ordinary cell, so that all of its results are cached. A repair that was interrupted
continues when it is repeated: the steps before the interruption come from the cache, and lead to the same decisions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from qnnsweep.conf.impossible import impossible_reason
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.repair_plan import planned, searched_samples
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.flows.resources import Resources, prepare
from qnnsweep.flows.run import CellResults, RunStart, command, finish_run, overrides_with_secrets, run_cells
from qnnsweep.flows.runs import results
from qnnsweep.flows.runs.artifacts import create_artifacts
from qnnsweep.flows.runs.recipe import Recipe, write_recipe
from qnnsweep.flows.server import leases
from qnnsweep.flows.server.decorator import run_flow
from qnnsweep.tasks.records.repair_rows import CertificateRow
from qnnsweep.tasks.records.tables import by_columns
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.results.repair_rows import cells_of, certificate_rows, repair_rows
from qnnsweep.tasks.results.repair_search import Search, Step
from qnnsweep.tasks.results.unseen import unseen_samples
from qnnsweep.tasks.storage import lock
from qnnsweep.tasks.storage.store import Store

on_step: ContextVar[Callable[[Step], None]] = ContextVar("on_step", default=lambda _step: None)
"""The function that is called with every step of the search. See `qnnsweep.flows.run.on_progress`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairResult:
    run: results.SweepResult
    search: Search
    certificate: Sequence[CertificateRow]
    recipe: Recipe


@run_flow()
def repair(overrides: list[str], config_dirs: list[str] | None = None) -> RepairResult:
    """Search a scheme that reaches the target of a plan. `overrides`: as in `qnnsweep.flows.sweep.sweep`.

    Raises RequestError for a wrong request, EnvironmentUnusable for an unusable machine, and the error of a cell whose
    cause is not in the cell.
    """
    folders = [Path(folder) for folder in config_dirs or ()]
    plan = planned(overrides_with_secrets.get() or overrides, folders)
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    with lock.shared(store):
        run_start = RunStart.now()
        resources = prepare(plan, device_lock=leases.exclusive)
        first = plan.cells[0].request
        cells = Cells(plan, resources, run_start.run_id)
        search = Search(target=first.target, budget=first.budget, samples=range(searched_samples(first)))
        search.run(first.scheme, cells.measure, on_step.get())
        certificate = list(_certificate(run_start.run_id, search, store))
        run = run_start.compiled_facts(resources, cells.reused, command(overrides, folders, verb="repair"))
        done = CellResults(
            cells=[cell for step in search.steps for cell in cells_of(step)],
            reused=cells.reused,
            result_names=cells.result_names,
        )
        rows = {
            "repair": [by_columns(row) for row in repair_rows(run.run_id, search.steps)],
            "certificate": [by_columns(row) for row in certificate],
        }
        costs = resources.costs
        result = finish_run(run, done, resources, trend=None, costs=costs, verb="repair", more_rows=rows)
        recipe = write_recipe(run, search, rows, store)
        create_artifacts(result, store, plan.prefect.reports_url)
    return RepairResult(run=result, search=search, certificate=certificate, recipe=recipe)


class Cells:
    """The cells of all steps. They share one store, and the digests of the model's code."""

    def __init__(self, plan: Plan, resources: Resources, run_id: str) -> None:
        self._plan = plan
        self._run = partial(run_cells, resources=resources, run_id=run_id, codes={})
        self.reused = 0
        self.result_names: dict[str, bool] = {}

    def measure(self, scheme: SchemeConfig) -> Sequence[CellResult]:
        """Run a scheme for every SoC. If it is impossible on an SoC, it is compiled for none.

        Raises the error of a cell whose cause is not in the cell, because the scheme is not to blame for it.
        """
        requests = [replace(cell.request, scheme=scheme) for cell in self._plan.cells]
        cells = tuple(PlannedCell(request=request, impossible=impossible_reason(request)) for request in requests)
        impossible = next((cell for cell in cells if cell.impossible), None)
        if impossible is not None:
            other = f"not compiled, because it is impossible on {impossible.request.soc.name}: {impossible.impossible}"
            return [CellResult(request=cell.request, impossible=cell.impossible or other) for cell in cells]
        # Every step's overrides are made for the graph; only those of the user may not fit it.
        done = self._run(replace(self._plan, cells=cells), check_overrides=scheme == self._plan.cells[0].request.scheme)
        self.reused += done.reused
        self.result_names |= done.result_names
        for cell in done.cells:
            if judge(cell).outcome == "infrastructure" and cell.error is not None:
                raise cell.error
        return done.cells


def _certificate(run_id: str, search: Search, store: Store) -> Iterator[CertificateRow]:
    exported = search.steps[0].complete[0].exported
    if exported is not None:
        further = len(exported.sample_names) - len(search.samples)
        unseen = unseen_samples(exported, len(search.samples), store)
        yield from certificate_rows(run_id, search.steps[0], search.accepted, unseen, further - len(unseen))
