"""A run on disk: its tables, its facts and its report. `cells` are written last: a run that has them is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas

from flows.history import with_coverage_falls
from tasks.errors import EvidenceError, RequestError
from tasks.records import Toolchain
from tasks.report import RunFacts, render
from tasks.storage import tables
from tasks.storage.store import Store, write_atomically


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    run: RunFacts
    cells: pandas.DataFrame
    """The run's rows of the table `cells`, in the order planned."""


def report_path(artifacts: Path, run_id: str) -> Path:
    return artifacts / "runs" / run_id / "report.html"


def write(run: RunFacts, contents: Mapping[str, Sequence[Mapping[str, Any]]], store: Store) -> SweepResult:
    """Keep a run's rows and facts below the store's folder, and draw its report."""
    told = {**contents, "cells": with_coverage_falls(store.root, run.run_id, contents["cells"])}
    keep(run, told, store.root, partial=store.partial)
    return _drawn(run, store)


def keep(run: RunFacts, contents: Mapping[str, Sequence[Mapping[str, Any]]], root: Path, *, partial: Path) -> None:
    """A run's rows and facts below `root`."""
    _keep_facts(run, root, partial)
    for table in sorted(contents, key=lambda name: name == "cells"):
        tables.write(root, run.run_id, table, contents[table], partial=partial)


def is_kept(run_id: str, root: Path) -> bool:
    """Whether `keep` came to its end there."""
    return run_id in tables.runs(root)


def join(run: RunFacts, parts: Sequence[Path], store: Store) -> SweepResult:
    """One run out of its parts, each kept below a folder of its own, and its report."""
    _keep_facts(run, store.root, store.partial)
    for table in tables.TABLES:
        if table != "cells":
            tables.join(store.root, run.run_id, table, parts, partial=store.partial)
    cells = [row for part in parts for row in tables.rows(part, "cells", run.run_id)]
    told = with_coverage_falls(store.root, run.run_id, cells)
    tables.write(store.root, run.run_id, "cells", told, partial=store.partial)
    return _drawn(run, store)


def export_tsv(artifacts: Path, run_id: str, folder: Path) -> None:
    """Every table of a run as `<folder>/<table>.tsv`. Raises RequestError where that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables.TABLES:
            (folder / f"{table}.tsv").write_text(tables.tsv(artifacts, table, run_id))
    except OSError as error:
        raise RequestError(f"--tsv={folder}: cannot be written: {error.strerror}") from error


def redraw(artifacts: Path, run_id: str | None) -> SweepResult:
    """Draw the report of a past run anew, the latest if none is named. Raises RequestError if there is no such run."""
    return _drawn(past(artifacts, run_id), Store.open(artifacts))


def past(artifacts: Path, run_id: str | None) -> RunFacts:
    """The facts of a past run, the latest if none is named. Raises RequestError if there is no such run."""
    known = tables.runs(artifacts)
    if not known or run_id not in (None, *known):
        wanted = "no run" if run_id is None else f"no run {run_id!r}"
        raise RequestError(f"{wanted} in {artifacts}; there are: {', '.join(known) or 'none'}")
    return kept_facts(run_id or known[-1], artifacts)


def kept_facts(run_id: str, root: Path) -> RunFacts:
    """What `keep` wrote of a run. Raises EvidenceError."""
    path = _facts_path(root, run_id)
    try:
        facts = json.loads(path.read_bytes())
        toolchain = Toolchain(**facts.pop("toolchain"))
        return RunFacts(**facts | {"command": tuple(facts["command"]), "toolchain": toolchain})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EvidenceError(f"{path} cannot be read: {error}") from error


def _keep_facts(run: RunFacts, root: Path, partial: Path) -> None:
    write_atomically(_facts_path(root, run.run_id), json.dumps(asdict(run), indent=1).encode(), partial=partial)


def _drawn(run: RunFacts, store: Store) -> SweepResult:
    read = {table: tables.read(store.root, table, run.run_id) for table in tables.TABLES}
    page = render(run, read, _logs(store, read["cells"]))
    write_atomically(report_path(store.root, run.run_id), page.encode(), partial=store.partial)
    return SweepResult(run=run, cells=read["cells"])


def _logs(store: Store, cells: pandas.DataFrame) -> dict[str, str]:
    """The text of each log that a cell's row names and the store still has."""
    found = {sha256: store.find(sha256) for sha256 in cells["log"].dropna().unique()}
    return {sha256: store.read(blob).decode(errors="replace") for sha256, blob in found.items() if blob}


def _facts_path(artifacts: Path, run_id: str) -> Path:
    return artifacts / "runs" / run_id / "run.json"
