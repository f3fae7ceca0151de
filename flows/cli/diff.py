"""The command `qnnsweep diff`: the comparison of two runs."""

from dataclasses import asdict
from typing import Annotated

import typer

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.completion import complete_run
from qnnsweep.flows.cli.options import RUN_NAMES

EXITS = "Exit codes: 0 no regression · 1 a cell regressed or is lost · 2 no such run, or no common cell."


def diff(
    words: Words,
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help=f"A run: {RUN_NAMES}.", autocompletion=complete_run)],
    run_b: Annotated[
        str, typer.Argument(metavar="RUN_B", help="The run to compare with RUN_A.", autocompletion=complete_run)
    ],
) -> Output:
    """Compare two runs, cell by cell and operator by operator, show what changed, and write it as a page."""
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
