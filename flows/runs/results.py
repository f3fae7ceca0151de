"""The results of a run: its tables, its facts and its report.

The table `cells`, which marks the run as complete, is written after all tables but `trends`. What is computed from
earlier runs is written at the end, so that these cannot cost a run its rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.case_history import case_trends
from qnnsweep.flows.runs.history import trends
from qnnsweep.flows.runs.names import resolve
from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.records import RunFacts, Toolchain
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.atlas import atlas_markdown, render_atlas
from qnnsweep.tasks.report.counts import Counts, count
from qnnsweep.tasks.report.format import with_places
from qnnsweep.tasks.report.formats.formats import FORMATS
from qnnsweep.tasks.report.formats.names import Format
from qnnsweep.tasks.report.page import log_characters, render
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

_BYTES_PER_CHARACTER = 4  # the most that a character of UTF-8 has


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    run: RunFacts
    cells: Sequence[Row]
    """The run's rows of the table `cells`, in the order of the plan."""
    page: Path
    """The path of the report on this machine."""
    trends: Sequence[Row]
    """The run's rows of the table `trends`."""
    atlas: Sequence[Row] = ()
    """The run's rows of the table `atlas`."""
    fail_on: Sequence[str] = ()
    """The outcomes of which one cell makes the state of the flow run Failed."""

    @property
    def counts(self) -> Counts:
        return count(self.cells, self.trends)


def run_folder(run_id: str) -> str:
    """Return the folder in the store for everything that a run writes, except its tables."""
    return f"runs/{run_id}"


def report_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/report.html"


def write(run: RunFacts, contents: Mapping[str, Sequence[Row]], store: Store, trend: TrendConfig | None) -> SweepResult:
    """Write a run's rows, facts and report. `trend`: how to compare it with earlier runs; None for no comparison."""
    write_rows(run, contents, store)
    return _rendered(run, _with_trends(run, contents, store, trend), store)


def write_rows(run: RunFacts, contents: Mapping[str, Sequence[Row]], store: Store) -> None:
    """Write a run's rows and facts into the store."""
    _write_facts(run, store)
    for table in sorted(contents, key=lambda name: name == "cells"):
        tables.write(store, run.run_id, table, contents[table])


def is_complete(run_id: str, store: Store) -> bool:
    """Return whether all rows of the run have been written to the store."""
    return run_id in tables.runs(store)


def join(run: RunFacts, shards: Sequence[Store], store: Store, trend: TrendConfig) -> SweepResult:
    """Join the rows of a run's shards, and render the report. `shards`: one store per shard."""
    _write_facts(run, store)
    for table in set(tables.TABLES) - {"cells", "trends"}:
        tables.join(store, run.run_id, table, shards)
    contents = _rows(run, store, set(tables.TABLES) - {"cells", "trends"})
    contents["cells"] = [row for shard in shards for row in tables.rows(shard, "cells", run.run_id)]
    tables.write(store, run.run_id, "cells", contents["cells"])
    return _rendered(run, _with_trends(run, contents, store, trend), store)


def export_tsv(store: Store, run_id: str, folder: Path) -> None:
    """Write every table of a run to `<folder>/<table>.tsv`. Raises RequestError for a folder that is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables.TABLES:
            (folder / f"{table}.tsv").write_text(tables.tsv(store, table, run_id))
    except OSError as error:
        raise RequestError(f"--tsv={folder}: cannot be written: {error.strerror}; choose another folder") from error


def formatted(store: Store, name: str | None, format_: Format) -> str:
    """Return a past run as text for another tool; see `find_run`. Raises RequestError if there is no such run."""
    run = find_run(store, name)
    rows = _rows(run, store, ("cells", "delegation", "outputs", "operators", "trends"))
    return FORMATS[format_](run, rows | {"cells": with_places(rows["cells"], run)})


def rerender(store: Store, name: str | None) -> SweepResult:
    """Render the report of a past run again; see `find_run`. Raises RequestError if there is no such run."""
    if store.url or tables.runs(store):  # create no folder where there is no run
        store.check_writable()
    run = find_run(store, name)
    return _rendered(run, _rows(run, store, tables.TABLES), store)


def find_run(store: Store, name: str | None) -> RunFacts:
    """Return the facts of the run that `name` means; see `resolve`. Raises RequestError if there is no such run."""
    return read_facts(resolve(store, name), store)


def read_facts(run_id: str, store: Store) -> RunFacts:
    """Return the facts that `write_rows` wrote. Raises EvidenceError if they cannot be read."""
    name = _facts_name(run_id)
    try:
        facts = json.loads(store.files.read(name))
        toolchain = Toolchain(**facts.pop("toolchain"))
        values = {"command": tuple(facts["command"]), "cells": json.dumps(facts.get("cells", {}))}
        return RunFacts(**facts | values, toolchain=toolchain)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EvidenceError(f"{store.display_path(name)} cannot be read: {error}") from error


def _write_facts(run: RunFacts, store: Store) -> None:
    facts = asdict(run) | {"cells": json.loads(run.cells)}
    store.files.write(_facts_name(run.run_id), json.dumps(facts, indent=1).encode())


def _with_trends(
    run: RunFacts, contents: Mapping[str, Sequence[Row]], store: Store, trend: TrendConfig | None
) -> dict[str, Sequence[Row]]:
    """Write the run's table `trends`, and return it with the other `contents`."""
    rows: Sequence[Row] = []
    if trend:
        cells, operators, steps = (contents[table] for table in ("cells", "operators", "steps"))
        rows = [
            *trends(store, run.run_id, cells, operators, trend, steps),
            *case_trends(store, run.run_id, cells, contents["atlas"]),
        ]
    tables.write(store, run.run_id, "trends", rows)
    return {**contents, "trends": rows}


def _rows(run: RunFacts, store: Store, names: Iterable[str]) -> dict[str, list[Row]]:
    return {table: tables.rows(store, table, run.run_id) for table in names}


def _rendered(run: RunFacts, contents: Mapping[str, Sequence[Row]], store: Store) -> SweepResult:
    name, cells = report_name(run.run_id), contents["cells"]
    store.files.write(name, render(run, contents, _logs(store, cells)).encode())
    if cases := contents["atlas"]:
        for page, text in (("atlas.html", render_atlas(run, cases)), ("atlas.md", atlas_markdown(run, cases))):
            store.files.write(f"{run_folder(run.run_id)}/{page}", text.encode())
    return SweepResult(
        run=run, cells=cells, trends=contents["trends"], page=store.files.local(name), atlas=contents["atlas"]
    )


def _logs(store: Store, cells: Sequence[Row]) -> dict[str, str]:
    """Map the sha256 of every log of the `cells` to the end of the log's text: a little more than the report shows.

    Logs that are not stored any more, or that are damaged, are left out.
    """
    blobs = {row["log"]: store.find(row["log"]) for row in cells if row["log"]}
    characters = log_characters(sum(blobs.get(row["log"]) is not None for row in cells)) + 1
    logs: dict[str, str] = {}
    for sha256, blob in blobs.items():
        if blob is not None:
            with suppress(EvidenceError):
                logs[sha256] = store.read_end(blob, characters * _BYTES_PER_CHARACTER).decode(errors="replace")
    return logs


def _facts_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/run.json"
