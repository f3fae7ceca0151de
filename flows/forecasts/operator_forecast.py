"""The forecast of every operator call of a plan's cells, from the operator atlases in the store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import ExportedModel, OperatorCall
from qnnsweep.tasks.results.usability import ATLAS_COLUMNS, AtlasEvidence, CallForecast, Where
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

Export = Callable[[Request], ExportedModel | None]
"""Returns the exported model of a request; None if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorForecast:
    """The forecast of an operator call of a cell's model."""

    call: OperatorCall
    forecast: CallForecast


def evidence_of(plan: Plan) -> dict[str, AtlasEvidence]:
    """Return the evidence in the store's atlases, by backend; empty if there is no atlas."""
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    found = select(store, "atlas", (*ATLAS_COLUMNS, "backend", "executed_on"), problems=set())
    rows = [row for row in found if row["executed_on"] is None]  # a device says nothing about a compiler
    backends = {cell.request.backend.name for cell in plan.cells} if rows else ()
    return {backend: AtlasEvidence(row for row in rows if row["backend"] == backend) for backend in backends}


def operator_forecasts(
    plan: Plan, evidence: Mapping[str, AtlasEvidence], export: Export
) -> list[list[OperatorForecast] | None] | None:
    """Return the forecasts of every cell's operator calls; None without evidence.

    `evidence`: by backend. A cell has None if it is impossible, or if `export` returns no model for it. The cell of a
    collection, which an atlas measures itself, has no forecasts.
    """
    return [_of_cell(cell, export, evidence) for cell in plan.cells] if evidence else None


def _of_cell(
    cell: PlannedCell, export: Export, evidence_of_backend: Mapping[str, AtlasEvidence]
) -> list[OperatorForecast] | None:
    if cell.is_collection:
        return []
    request = cell.request
    exported = None if cell.impossible is not None else export(request)
    if exported is None:
        return None
    evidence = evidence_of_backend[request.backend.name]
    where = Where(scheme=request.scheme.name, arch=request.soc.arch, toolchain=request.toolchain.name)
    return [
        OperatorForecast(call=call, forecast=evidence.forecast(call.text, where))
        for method in exported.methods
        for call in method.calls
    ]
