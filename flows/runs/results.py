"""A run on disk: its tables, its facts and its report. `cells` are written last: a run that has them is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas

from conf.schema import TrendConfig
from flows.runs.history import trends
from tasks.errors import EvidenceError, RequestError
from tasks.records import RunFacts, Toolchain
from tasks.report.page import render
from tasks.storage import tables
from tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    run: RunFacts
    cells: pandas.DataFrame
    """The run's rows of the table `cells`, in the order planned."""
    page: Path
    """The report as a file of this machine."""
    trends: pandas.DataFrame
    """Its rows of the table `trends`."""


def run_folder(run_id: str) -> str:
    """Below the store's place: what a run left besides its tables."""
    return f"runs/{run_id}"


def report_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/report.html"


def write(
    run: RunFacts,
    contents: Mapping[str, Sequence[Mapping[str, Any]]],
    store: Store,
    trend: TrendConfig | None,
) -> SweepResult:
    """Keep a run's rows and facts in the store's place, and draw its report.

    By `trend` it is held against the nights before; with None it is no night.
    """
    cells, operators = contents["cells"], contents["operators"]
    judged = trends(store, run.run_id, cells, operators, trend) if trend else []
    write_rows(run, {**contents, "trends": judged}, store)
    return _rendered(run, store)


def write_rows(run: RunFacts, contents: Mapping[str, Sequence[Mapping[str, Any]]], store: Store) -> None:
    """A run's rows and facts in the store's place."""
    _write_facts(run, store)
    for table in sorted(contents, key=lambda name: name == "cells"):
        tables.write(store, run.run_id, table, contents[table])


def is_complete(run_id: str, store: Store) -> bool:
    """Whether `write_rows` came to its end there."""
    return run_id in tables.runs(store)


def join(run: RunFacts, parts: Sequence[Store], store: Store, trend: TrendConfig) -> SweepResult:
    """One run out of its parts, each kept in a place of its own, and its report."""
    _write_facts(run, store)
    for table in set(tables.TABLES) - {"cells", "trends"}:
        tables.join(store, run.run_id, table, parts)
    cells = [row for part in parts for row in tables.rows(part, "cells", run.run_id)]
    operators = tables.rows(store, "operators", run.run_id)
    tables.write(store, run.run_id, "trends", trends(store, run.run_id, cells, operators, trend))
    tables.write(store, run.run_id, "cells", cells)
    return _rendered(run, store)


def export_tsv(store: Store, run_id: str, folder: Path) -> None:
    """Every table of a run as `<folder>/<table>.tsv`. Raises RequestError where that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables.TABLES:
            (folder / f"{table}.tsv").write_text(tables.tsv(store, table, run_id))
    except OSError as error:
        raise RequestError(f"--tsv={folder}: cannot be written: {error.strerror}") from error


def rerender(store: Store, run_id: str | None) -> SweepResult:
    """Draw the report of a past run anew, the latest if none is named. Raises RequestError if there is no such run."""
    if store.url or tables.runs(store):  # nothing is made where nothing was
        store.try_out()
    return _rendered(find_run(store, run_id), store)


def find_run(store: Store, run_id: str | None) -> RunFacts:
    """The facts of a past run, the latest if none is named. Raises RequestError if there is no such run."""
    known = tables.runs(store)
    if not known or run_id not in (None, *known):
        wanted = "no run" if run_id is None else f"no run {run_id!r}"
        raise RequestError(f"{wanted} in {store.place}; there are: {', '.join(known) or 'none'}")
    return read_facts(run_id or known[-1], store)


def read_facts(run_id: str, store: Store) -> RunFacts:
    """What `write_rows` wrote of a run. Raises EvidenceError."""
    name = _facts_name(run_id)
    try:
        facts = json.loads(store.files.read(name))
        toolchain = Toolchain(**facts.pop("toolchain"))
        return RunFacts(**facts | {"command": tuple(facts["command"]), "toolchain": toolchain})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EvidenceError(f"{store.shown(name)} cannot be read: {error}") from error


def _write_facts(run: RunFacts, store: Store) -> None:
    store.files.write(_facts_name(run.run_id), json.dumps(asdict(run), indent=1).encode())


def _rendered(run: RunFacts, store: Store) -> SweepResult:
    read = {table: tables.read(store, table, run.run_id) for table in tables.TABLES}
    page = render(run, read, _logs(store, read["cells"]))
    store.files.write(report_name(run.run_id), page.encode())
    page_file = store.files.local(report_name(run.run_id))
    return SweepResult(run=run, cells=read["cells"], trends=read["trends"], page=page_file)


def _logs(store: Store, cells: pandas.DataFrame) -> dict[str, str]:
    """The text of each log that a cell's row names and the store still has."""
    found = {sha256: store.find(sha256) for sha256 in cells["log"].dropna().unique()}
    return {sha256: store.read(blob).decode(errors="replace") for sha256, blob in found.items() if blob}


def _facts_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/run.json"
