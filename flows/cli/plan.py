"""The command `qnnsweep plan`. Heavy libraries are imported only where they are needed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.plan_operators import operator_lines, operators_json
from qnnsweep.flows.cli.plan_table import forecast_line, plan_table

if TYPE_CHECKING:
    from qnnsweep.conf.plan import Plan
    from qnnsweep.flows.cli.check_models import PlanCheck


def plan(
    words: Words,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Also create and export every model, and check overrides and operators. Compiles nothing."
        ),
    ] = False,
) -> Output:
    """Show the cells that a run would have, why some are impossible, what is compiled already, and how long it takes.

    If there is an atlas (`qnnsweep atlas`), also show which operators will not run on the device. Without --check, no
    code of a model runs: overrides and operators are checked if a run has exported the model.
    """
    from qnnsweep.conf.load import load
    from qnnsweep.conf.names import AXES

    planned = load(words.overrides, config_dirs=words.config_dirs)
    expected = None
    if Path(planned.artifacts, "tables").is_dir():
        from qnnsweep.flows.forecasts.costs import forecast

        expected = forecast(planned)
    cells: list[dict[str, Any]] = [
        {
            **dict(zip(AXES, cell.request.names, strict=True)),
            "impossible": cell.impossible,
            "compiled": bool(expected and expected.compiled[number]),
        }
        for number, cell in enumerate(planned.cells)
    ]
    seconds = expected.seconds if expected else None
    lines: list[RenderableType] = [forecast_line(expected)] if expected else []
    checked = _checked(planned, check)
    if checked is not None:
        _add(cells, checked)
        lines += operator_lines(cells, checked.operators) if checked.operators is not None else []
    return Output(
        contents={"cells": cells, "seconds": seconds},
        parts=[plan_table(cells, expected), *lines],
        exit_code=NOT_ALL_PASSED if any(cell.get("error") for cell in cells) else PASSED,
    )


def _checked(planned: "Plan", check: bool) -> "PlanCheck | None":
    """Check the cells, without `check` from what is stored only; None if there is nothing that could be checked."""
    if check:
        from qnnsweep.flows.cli.check_models import check_plan

        return check_plan(planned)
    if not Path(planned.artifacts, "results").is_dir():
        return None
    from qnnsweep.flows.forecasts.operator_forecast import evidence_of

    evidence = evidence_of(planned)
    if not evidence and not any(cell.request.scheme.overrides for cell in planned.cells):
        return None
    from qnnsweep.flows.cli.check_models import check_with_stored_exports

    return check_with_stored_exports(planned, evidence)


def _add(cells: list[dict[str, Any]], checked: "PlanCheck") -> None:
    """Add what was checked to the cells of `--json`."""
    for cell, error in zip(cells, checked.errors, strict=True):
        cell["error"] = error
    if checked.operators is not None:
        for cell, operators in zip(cells, checked.operators, strict=True):
            cell["operators"] = operators_json(operators)
