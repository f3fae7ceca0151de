"""The command `qnnsweep atlas`. Heavy libraries are imported only after the request has been parsed and checked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.foreground import has_failed, sweep_here
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError

if TYPE_CHECKING:
    from qnnsweep.conf.plan import Plan
    from qnnsweep.flows.runs.results import SweepResult
    from qnnsweep.tasks.records.tables import Row

EXITS = """
Exit codes: 0 every case has an outcome · 1 the cases of a cell could not be tried · 2 the request is wrong, nothing
ran · 3 this machine lacks something.
"""


_MOST_SHOWN = 40
"""The most cases that are listed; the page has all."""


def atlas(
    words: Words,
    case: Annotated[
        str | None,
        typer.Option("--case", metavar="NAME", help="Only print this case as a file for model=FILE. Nothing is tried."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="DEVICE",
            help="Execute the cases on this device, and compare all its tensors with those of the simulator. "
            "The same as device=DEVICE.",
        ),
    ] = None,
    tolerance: Annotated[
        Path | None,
        typer.Option(
            "--tolerance", metavar="FILE", help="Write the measured tolerance per operator type, for tolerance=FILE."
        ),
    ] = None,
) -> Output:
    """Try every operator case of ExecuTorch's own tests in each scheme, and say which operators can be used.

    With model=MODEL, the cases are the distinct operator calls of this model, with the tensors that they get in it. For
    example: scheme=16a8w soc=SM8650,SM8750 model.arguments.operators=[add,conv2d]
    """
    from qnnsweep.conf.atlas_plan import atlas_overrides, planned
    from qnnsweep.conf.impossible import is_here
    from qnnsweep.flows.runs.regressions import regressions_table
    from qnnsweep.tasks.report.atlas_codes import differs, is_compared

    overrides = atlas_overrides([*words.overrides, *([] if against is None else [f"device={against}"])])
    plan = planned(overrides, words.config_dirs)
    if against is not None and all(map(is_here, plan.cells[0].request.devices)):
        problem = "it is the simulator of this machine; name another device, or add device.runner=onnxruntime"
        raise RequestError(problem, key="--against", value=against)
    if case is not None:
        from qnnsweep.flows.cells.case_model import case_yaml

        return Output(parts=[case_yaml(plan, case).removesuffix("\n")], with_json=True)
    if any(cell.is_collection for cell in plan.cells) and find_spec("pytest") is None:
        raise EnvironmentUnusable(
            "pytest is not installed, which ExecuTorch's operator tests import",
            remedy="run `pip install -c constraints.txt pytest`",
        )
    configure_prefect()
    result = sweep_here(plan, words, overrides)
    rows = _rows(result)
    if tolerance is not None:
        _write_tolerance(tolerance, result, plan)
    regressions = regressions_table(result.counts)
    differing = [row for row in result.atlas if differs(row)]
    counts = [
        {
            **cell,
            "states": dict(states),
            "compared": sum(is_compared(row) for row in result.atlas if _is_of(row, cell)),
            "differing": [row["case"] for row in differing if _is_of(row, cell)],
        }
        for cell, states in rows
    ]
    passed = all(row["error"] is None for row in result.cells) and not has_failed(plan, result)
    return Output(
        contents={"run_id": result.run.run_id, "report": result.run.report, "cells": counts},
        parts=[*_shown(result, rows), *_beside(result, differing), *([] if regressions is None else [regressions])],
        with_json=True,
        exit_code=PASSED if passed else NOT_ALL_PASSED,
    )


def _write_tolerance(file: Path, result: "SweepResult", plan: "Plan") -> None:
    """Write the tolerances that the atlas measured. Raises RequestError for a file that cannot be written."""
    import yaml

    from qnnsweep.tasks.results.measured_tolerance import measured_tolerance

    measured = measured_tolerance(result.atlas, plan.cells[0].request.tolerance, file.stem)
    text = yaml.safe_dump(asdict(measured), sort_keys=False)
    try:
        file.write_text(f"# Written by qnnsweep atlas, run {result.run.run_id}.\n{text}")
    except OSError as error:
        raise RequestError(f"cannot be written: {error.strerror}", key="--tolerance", value=str(file)) from error


def _rows(result: "SweepResult") -> list[tuple[dict[str, str], Counter[str]]]:
    """Return the names of every cell, and how many of its cases have each state."""
    counted: list[tuple[dict[str, str], Counter[str]]] = []
    for cell in result.cells:
        names = {axis: str(cell[axis]) for axis in ("model", "scheme", "soc", "toolchain", "device")}
        counted.append((names, Counter(row["state"] for row in result.atlas if _is_of(row, names))))
    return counted


def _is_of(row: "Row", cell: dict[str, str]) -> bool:
    return all(row[axis] == name for axis, name in cell.items())


def _beside(result: "SweepResult", differing: Sequence["Row"]) -> list[RenderableType]:
    """Return the cases in which a device has not returned what the simulator has; nothing without another device."""
    from qnnsweep.tasks.report.atlas_codes import is_compared
    from qnnsweep.tasks.report.format import percent, plain_table, plural

    executed, compared = (
        sum(row["executed_on"] is not None for row in result.atlas),
        sum(map(is_compared, result.atlas)),
    )
    if not executed:
        return []
    line = f"{compared - len(differing)} of {plural(compared, 'case')} equal to the simulator code by code"
    if executed > compared:
        line += f"; {executed - compared} executed on the CPU alone or not by the simulator, and not compared"
    if not differing:
        return [line]
    table = plain_table("differs", "scheme", "soc", "device", "equal %", "how", right=("equal %",))
    for row in differing[:_MOST_SHOWN]:
        names = (row[column] for column in ("case", "scheme", "soc", "executed_on"))
        table.add_row(*names, percent(row["simulator_equal"]), row["simulator_why"] or "")
    more = len(differing) - _MOST_SHOWN
    return [line, table, *([f"and {more} more; atlas.md has all"] if more > 0 else [])]


def _shown(result: "SweepResult", rows: list[tuple[dict[str, str], Counter[str]]]) -> list[RenderableType]:
    from qnnsweep.tasks.records.vocabulary import CASE_STATES
    from qnnsweep.tasks.report.format import plain_table

    facts = result.run
    heads = tuple(state.replace("_", " ") for state in CASE_STATES)
    table = plain_table("collection", "scheme", "soc", "toolchain", "device", "cases", *heads, right=("cases", *heads))
    for names, states in rows:
        counts = (str(states[state]) if states[state] else "–" for state in CASE_STATES)
        table.add_row(*names.values(), str(states.total()), *counts)
    line = f"{facts.seconds:.0f} s, {facts.toolchain_calls} toolchain calls, {facts.reused} results reused"
    return [table, f"{line}\nreport {facts.report.removesuffix('report.html')}atlas.html"]
