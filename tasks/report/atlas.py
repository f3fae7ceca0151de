"""The pages of an operator atlas: a grid of cases and schemes with filters, and the same as Markdown for others."""

import base64
import hashlib
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import CASE_STATES
from qnnsweep.tasks.report.format import decimal, markdown, markdown_table, plural
from qnnsweep.tasks.report.page import beside, environment

USABLE = ("exact", "delegated")
_WRONG = ("wrong", "aborted")


@dataclass(frozen=True, order=True, slots=True)
class Column:
    """A column of the grid: a scheme on an SoC, with a toolchain."""

    scheme: str
    soc: str
    toolchain: str

    @property
    def title(self) -> str:
        return f"{self.scheme} {self.place}"

    @property
    def place(self) -> str:
        return self.soc if self.toolchain == "default" else f"{self.soc} {self.toolchain}"


def render_atlas(run: RunFacts, rows: Sequence[Row]) -> str:
    """Return the grid as one HTML document that loads no other file. `rows`: the run's rows of the table `atlas`."""
    script = beside("atlas.js")
    template: jinja2.Environment = environment()
    columns = _columns(rows)
    return template.get_template("atlas.html.j2").render(
        run=run,
        command=shlex.join(run.command),
        usable=sum(row["state"] in USABLE for row in rows),
        tried=sum(row["state"] != "not_exported" for row in rows),
        states=[state for state in CASE_STATES if any(row["state"] == state for row in rows)],
        meanings=CASE_STATES,
        totals=[({"model": model, "scheme": c.scheme, "place": c.place}, n) for (model, c), n in _totals(rows).items()],
        columns=columns,
        lines=[*_lines(rows, columns)],
        style=Markup(beside("page.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def atlas_markdown(run: RunFacts, rows: Sequence[Row]) -> str:
    """Return the atlas as Markdown: how many cases of each operator have each state, and every case that is wrong."""
    return "\n".join(_markdown(run, rows)) + "\n"


def _columns(rows: Sequence[Row]) -> list[Column]:
    return list(dict.fromkeys(map(_column, rows)))


def _column(row: Row) -> Column:
    return Column(scheme=row["scheme"], soc=row["soc"], toolchain=row["toolchain"])


def _totals(rows: Sequence[Row]) -> dict[tuple[str, Column], Counter[str]]:
    counts: dict[tuple[str, Column], Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row["model"], _column(row)][row["state"]] += 1
    return counts


def _lines(rows: Sequence[Row], columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """Yield the lines of the grid, one per case."""
    cases: dict[tuple[str, str], dict[Column, Row]] = defaultdict(dict)
    for row in rows:
        cases[row["model"], row["case"]][_column(row)] = row
    for (_, case), listed in cases.items():
        first = next(iter(listed.values()))
        yield {
            "operator": first["operator"],
            "case": case,
            "inputs": first["inputs"],
            "states": sorted({row["state"] for row in listed.values()}),
            "cells": [_cell(listed[column]) if column in listed else None for column in columns],
        }


def _cell(row: Row) -> Mapping[str, str | None]:
    final = row["final_snr_db"]
    size = f" {decimal(final)} dB" if final is not None and row["state"] in (*USABLE, "wrong", "cpu") else ""
    return {"state": row["state"], "why": row["why"], "size": size}


def _markdown(run: RunFacts, rows: Sequence[Row]) -> Iterator[str]:
    columns, versions = _columns(rows), run.toolchain
    yield f"Made by `{markdown(shlex.join(run.command))}`, run `{run.run_id}`"
    if versions is not None:
        yield f"with ExecuTorch {versions.executorch} and QNN {versions.qnn}."
    yield ""
    states = [state for state in CASE_STATES if any(row["state"] == state for row in rows)]
    totals = (
        (column.title, *(str(counts[state] or "") for state in states)) for (_, column), counts in _totals(rows).items()
    )
    yield markdown_table(("", *(state.replace("_", " ") for state in states)), totals)
    yield ""
    yield "## Operators"
    yield ""
    yield "Per operator and scheme, the number of cases in each state."
    yield ""
    by_operator: dict[str, dict[Column, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in rows:
        by_operator[row["operator"]][_column(row)][row["state"]] += 1
    lines = (
        (operator, *(_counted(listed[column]) for column in columns))
        for operator, listed in sorted(by_operator.items())
    )
    yield markdown_table(("operator", *(column.title for column in columns)), lines)
    wrong = [row for row in rows if row["state"] in _WRONG]
    if wrong:
        yield ""
        yield f"## Wrong or aborted: {plural(len(wrong), 'case')}"
        yield ""
        yield markdown_table(
            ("case", "inputs", "where", "state", "why"),
            ((row["case"], row["inputs"], _column(row).title, row["state"], row["why"] or "") for row in wrong),
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[state]} {state.replace('_', ' ')}" for state in CASE_STATES if counts[state])
