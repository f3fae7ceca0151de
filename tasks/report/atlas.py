"""The pages of an operator atlas: a grid of cases and schemes with filters, and the same as Markdown for others."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import CASE_STATES
from qnnsweep.tasks.report.atlas_codes import beside_simulator, differs, error_size, is_unlike, shares, simulator_size
from qnnsweep.tasks.report.format import decimal
from qnnsweep.tasks.report.templates import html, markdown_text
from qnnsweep.tasks.storage.environment import without_home

USABLE = ("exact", "delegated")
_WRONG = ("wrong", "aborted")


@dataclass(frozen=True, order=True, slots=True)
class Column:
    """A column of the grid: a scheme on an SoC, with a toolchain and on a device."""

    scheme: str
    soc: str
    toolchain: str
    device: str

    @property
    def title(self) -> str:
        return f"{self.scheme} {self.place}"

    @property
    def place(self) -> str:
        names = self.soc, self.toolchain, self.device
        return " ".join(name for name in names if name not in ("default", "local"))


def render_atlas(run: RunFacts, rows: Sequence[Row]) -> str:
    """Return the grid as one HTML document that loads no other file. `rows`: the run's rows of the table `atlas`."""
    columns = _columns(rows)
    return html(
        "atlas",
        run=run,
        command=shlex.join(without_home(run.command)),
        usable=sum(row["state"] in USABLE for row in rows),
        tried=sum(row["state"] != "not_exported" for row in rows),
        states=_states(rows),
        meanings=CASE_STATES,
        totals=[({"model": model, "scheme": c.scheme, "place": c.place}, n) for (model, c), n in _totals(rows).items()],
        columns=columns,
        beside=[(c.title, n, unlike) for c, n, unlike in beside_simulator(_placed(rows))],
        lines=[*_lines(rows, columns)],
    )


def atlas_markdown(run: RunFacts, rows: Sequence[Row]) -> str:
    """Return the atlas as Markdown: how many cases of each operator have each state, and every case that is wrong."""
    columns, states = _columns(rows), _states(rows)
    by_operator: dict[str, dict[Column, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in rows:
        by_operator[row["operator"]][_column(row)][row["state"]] += 1
    wrong = [row for row in rows if row["state"] in _WRONG]
    return markdown_text(
        "atlas",
        run=run,
        command=shlex.join(without_home(run.command)),
        states=[state.replace("_", " ") for state in states],
        totals=[(c.title, *(str(counts[s] or "") for s in states)) for (_, c), counts in _totals(rows).items()],
        columns=[column.title for column in columns],
        operators=[(name, *(_counted(listed[c]) for c in columns)) for name, listed in sorted(by_operator.items())],
        wrong=[(row["case"], row["inputs"], _column(row).title, row["state"], row["why"] or "") for row in wrong],
        shares=shares(_placed(rows), columns),
        unlike=[
            (row["case"], column.title, row["worst_operator"], error_size(row), row["state"])
            for column, row in _placed(rows)
            if is_unlike(row)
        ],
        beside=[(c.title, f"{n}", f"{unlike}") for c, n, unlike in beside_simulator(_placed(rows))],
        runtimes=[
            (row["case"], column.title, row["runtimes_differ"])
            for column, row in _placed(rows)
            if row["runtimes_differ"]
        ],
        differing=[
            (row["case"], column.title, row["executed_on"], simulator_size(row))
            for column, row in _placed(rows)
            if differs(row)
        ],
    )


def _placed(rows: Sequence[Row]) -> list[tuple[Column, Row]]:
    return [(_column(row), row) for row in rows]


def _states(rows: Sequence[Row]) -> list[str]:
    return [state for state in CASE_STATES if any(row["state"] == state for row in rows)]


def _columns(rows: Sequence[Row]) -> list[Column]:
    return list(dict.fromkeys(map(_column, rows)))


def _column(row: Row) -> Column:
    return Column(scheme=row["scheme"], soc=row["soc"], toolchain=row["toolchain"], device=row["device"])


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
    beside = simulator_size(row) if differs(row) else None
    why = ". ".join(filter(None, (row["why"], beside, row["runtimes_differ"]))) or None
    return {"state": row["state"], "why": why, "size": f"{size} ≠ simulator" if beside else size}


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[state]} {state.replace('_', ' ')}" for state in CASE_STATES if counts[state])
