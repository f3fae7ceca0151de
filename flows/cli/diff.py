"""The command `qnnsweep diff`: the comparison of two runs, or of programs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.completion import complete_run
from qnnsweep.flows.cli.inspect import read_program
from qnnsweep.flows.cli.options import RUN_NAMES
from qnnsweep.tasks.report.format import plain_table, plural

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.readback.program_changes import ProgramChange

EXITS = (
    "Exit codes: 0 no regression, or equal programs · 1 a cell regressed or is lost, or a program differs · 2 no such "
    "run or program, or no common cell."
)


def diff(
    words: Words,
    run_a: Annotated[
        str, typer.Argument(metavar="RUN_A", help=f"A run: {RUN_NAMES}; or a .pte file.", autocompletion=complete_run)
    ],
    run_b: Annotated[
        str, typer.Argument(metavar="RUN_B", help="The run or file to compare with it.", autocompletion=complete_run)
    ],
    programs: Annotated[
        bool, typer.Option("--programs", help="Compare the programs of the runs: their bytes, and what made them.")
    ] = False,
) -> Output:
    """Compare two runs, cell by cell and operator by operator, show what changed, and write it as a page.

    If RUN_A and RUN_B are .pte files, the programs are compared, which anyone may have made.
    """
    if any(name.endswith(".pte") for name in (run_a, run_b)):
        return _files(Path(run_a), Path(run_b))
    if programs:
        return _programs(words, run_a, run_b)
    from qnnsweep.flows.runs.diff import diff as compare_runs
    from qnnsweep.flows.runs.diff import diff_table
    from qnnsweep.flows.runs.diff_page import write_page

    difference = compare_runs(words.store, run_a, run_b)
    page = write_page(difference, words.store)
    table = diff_table(difference)
    line = f"page {page}" if page else "no page: the folder of RUN_B is not writable"
    counts = f"{difference.in_words()}, {difference.run_a} -> {difference.run_b}"
    return Output(
        contents=asdict(difference)
        | {"regressions": difference.regressions, "lost": len(difference.only_in_a), "page": page and str(page)},
        parts=[table if table.rows else "no value changed by more than its limit", f"{counts}\n{line}"],
        exit_code=NOT_ALL_PASSED if difference.is_worse else PASSED,
    )


def _files(file_a: Path, file_b: Path) -> Output:
    from qnnsweep.tasks.toolchain.readback.program_changes import program_changes

    changes = program_changes(read_program(file_a, "RUN_A"), read_program(file_b, "RUN_B"))
    return Output(
        contents={"a": str(file_a), "b": str(file_b), "changes": [asdict(change) for change in changes]},
        schema="diff files",
        parts=[_table(changes), f"{plural(len(changes), 'difference')}, {file_a} -> {file_b}"],
        exit_code=NOT_ALL_PASSED if changes else PASSED,
    )


def _programs(words: Words, run_a: str, run_b: str) -> Output:
    from qnnsweep.flows.runs.program_diff import diff_programs

    difference = diff_programs(words.store, run_a, run_b)
    differing = [cell for cell in difference.cells if cell.changes]
    parts = [part for cell in differing for part in (cell.cell, _table(cell.changes))]
    counts = f"{len(differing):,} of {plural(len(difference.cells), 'program')} differ"
    lost = f", {plural(len(difference.only_in_a), 'program')} lost" if difference.only_in_a else ""
    return Output(
        contents=asdict(difference),
        schema="diff --programs",
        parts=[*parts, f"{counts}{lost}, {difference.run_a} -> {difference.run_b}"],
        exit_code=NOT_ALL_PASSED if differing or difference.only_in_a else PASSED,
    )


def _table(changes: Sequence["ProgramChange"]) -> Table | str:
    if not changes:
        return "the programs are equal"
    table = plain_table("kind", "where", "what", "before", "after")
    for change in changes:
        table.add_row(*map(Text, (change.kind, change.where, change.what, change.before, change.after)))
    return table
