"""The plan of an operator atlas: the models whose operators are tried, the schemes and the SoCs."""

from collections.abc import Sequence
from pathlib import Path

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load
from qnnsweep.conf.plan import Plan

EXPERIMENT = "experiment=operators"
"""What an atlas measures if no experiment is selected."""


def atlas_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep that is an atlas."""
    selected = [] if any(override.startswith("experiment=") for override in overrides) else [EXPERIMENT]
    return [*selected, *overrides]


def planned(overrides: Sequence[str], folders: Sequence[Path]) -> Plan:
    """Return the plan of an atlas: a cell per collection of cases, scheme and SoC. Raises RequestError."""
    plan = load(overrides, config_dirs=folders)
    for cell in plan.cells:
        if cell.request.model.cases is None:
            problem = "an atlas tries operators and no whole models; set by_operator=true, as experiment=operators does"
            raise RequestError(problem, key="by_operator", value="false")
    return plan
