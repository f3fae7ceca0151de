"""The page that lists the runs, newest first, with a link to the report of each."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.report.page import STYLES
from qnnsweep.tasks.report.templates import html

MOST_RUNS = 400
_MOST_NAMES = 3


def render_index(cells: Sequence[Row], trends: Sequence[Row] = (), left_out: int = 0) -> str:
    """Return the list of runs as one HTML document. `cells`: the rows of all runs, the oldest run first.

    `trends`: their rows of `trends` that are worse. `left_out`: the number of older runs that the list does not have.
    """
    worse: dict[str, list[Row]] = defaultdict(list)
    for row in trends:
        worse[row["run_id"]].append(row)
    by_run = groupby(cells, key=lambda row: row["run_id"])
    runs = [_summary(run_id, list(rows), worse[run_id]) for run_id, rows in by_run]
    return html("index", styles=STYLES, runs=runs[::-1], left_out=left_out)


def _summary(run_id: str, cells: Sequence[Row], worse: Sequence[Row]) -> dict[str, Any]:
    counts = count(cells, worse)
    return {
        "run_id": run_id,
        "verb": cells[0]["verb"] or "run",  # null in runs of earlier versions
        "page": f"{run_id}/report.html",
        "verdict": ", ".join(counts.in_words()),
        "passed": not counts.not_passed and not counts.regressed,
        "models": _names(cells, "model"),
        "schemes": _names(cells, "scheme"),
        "socs": _names(cells, "soc"),
        "cells": len(cells),
    }


def _names(cells: Sequence[Row], column: str) -> str:
    """Return the different names in a column: all if they are few, otherwise the first and how many are left out."""
    names = list(dict.fromkeys(cell[column] for cell in cells if cell[column]))
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
