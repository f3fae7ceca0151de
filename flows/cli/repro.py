"""The command `qnnsweep repro`: a folder that shows one operator's error without qnnsweep."""

import sys
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qnnsweep.conf.units import KIB
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.options import RunOfCell, quiet_torch
from qnnsweep.tasks.report.format import plain_table

EXITS = (
    "Exit codes: 0 the folder is complete · 1 no small program shows the error · 2 the request is wrong, nothing ran · "
    "3 this machine lacks something."
)


def repro(
    words: Words,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell, such as MODEL/SCHEME/SOC.")],
    operator: Annotated[
        str | None,
        typer.Argument(
            metavar="[OPERATOR]",
            help="An operator that introduces error, or its module. By default the one with the largest effect.",
        ),
    ] = None,
    run_: RunOfCell = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="A new folder. By default repro-MODEL-SCHEME-SOC-OPERATOR."),
    ] = None,
) -> Output:
    """Write a folder with the smallest program that shows an operator's error, for others to run without qnnsweep.

    In the folder, `python repro.py` exits with 1; `python repro.py --twin`, the nearest change that is right, with 0.
    """
    from qnnsweep.conf.load import load
    from qnnsweep.flows.cli.foreground import interruptible
    from qnnsweep.flows.repro import reproduce

    quiet_torch()
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    socs = {cell.request.soc.name: cell.request.soc.arch for cell in load(["soc=glob(*)"]).cells}
    with interruptible(Console(stderr=True)):
        say = partial(print, file=sys.stderr, flush=True)
        reproducer = reproduce(words.store, run_, cell, operator, to, socs, say)
    table = plain_table("command", "answer", caption=f"{reproducer.folder}: {reproducer.size_bytes / KIB:.0f} KiB")
    table.add_row("python repro.py", f"{reproducer.error!r}, exit code 1: {', '.join(reproducer.operators)}")
    twin = (
        "no such change was found"
        if reproducer.twin is None
        else f"{reproducer.twin_error!r}, exit code 0: {reproducer.twin}"
    )
    table.add_row("python repro.py --twin", twin)
    return Output(contents=asdict(reproducer), parts=[table])
