"""The plan of an operator atlas: the collections of cases, the schemes and the SoCs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conf.errors import RequestError
from conf.impossible import impossible_reason
from conf.load import load
from conf.plan import Plan, PlannedCell
from conf.schema import RunnerKind, TransportKind

EXPERIMENT = "experiment=operators"
"""What an atlas measures if no experiment is selected."""


def planned(overrides: Sequence[str], folders: Sequence[Path]) -> Plan:
    """Return the plan of an atlas: a cell per collection, scheme and SoC. Raises RequestError."""
    selected = [] if any(override.startswith("experiment=") for override in overrides) else [EXPERIMENT]
    plan = load([*selected, *overrides], config_dirs=folders)
    return replace(plan, cells=tuple(map(_cell, plan.cells)))


def _cell(cell: PlannedCell) -> PlannedCell:
    request = cell.request
    if request.model.cases is None:
        problem = "not a collection of cases (model.cases is null); for example operator_suite"
        raise RequestError(problem, key="model", value=request.model.name)
    local = (TransportKind.local, RunnerKind.python)
    if any((device.transport, device.runner) != local for device in request.devices):
        problem = "the cases of an atlas run in the simulator of this machine; set no other transport or runner"
        raise RequestError(problem, key="device", value=request.where)
    one_model = replace(request, model=replace(request.model, cases=None))
    return replace(cell, impossible=impossible_reason(one_model))
