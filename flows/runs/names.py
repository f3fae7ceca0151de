"""The names of runs and cells that commands accept. A run: an id, its beginning, `latest` or `previous`."""

from qnnsweep.conf.errors import there_are
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.records.tables import CELL_COLUMNS, Row
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

_COLUMNS = tuple(dict.fromkeys(("run_id", "farm", *CELL_COLUMNS)))
_SEARCHED = 200  # the most runs among which the latest with a cell is searched


def resolve(store: Store, name: str | None) -> str:
    """Return the id of the run that `name` means. None means the latest run. Raises RequestError."""
    known = tables.runs(store)
    if name in known:
        return name
    special = {None: known[-1:], "latest": known[-1:], "previous": known[-2:-1]}
    matches = special[name] if name in special else [run for run in known if name and run.startswith(name)]
    if not matches:
        wanted = "no run" if name is None else f"no run {name!r}"
        raise RequestError(f"{wanted} in {store.location}; {there_are(known)}")
    if len(matches) > 1:
        raise RequestError(f"{name!r} matches several runs in {store.location}: {', '.join(matches)}; name one of them")
    return matches[0]


def find_run_of_cell(store: Store, name: str | None, cell: str) -> tuple[str, Row]:
    """Return the id of a run and the row of a cell in it; see `find_cell`. None: the latest of 200 that has the cell.

    Raises RequestError.
    """
    run_id = resolve(store, name)
    if name is None and not _matching(store, run_id, cell):
        earlier = tables.runs(store)[-_SEARCHED:]
        rows = select(store, "cells", _COLUMNS, runs=earlier, problems=set())
        run_id = max((row["run_id"] for row in rows if _begins(folder_of(row), cell)), default=run_id)
    return run_id, find_cell(store, run_id, cell)


def find_cell(store: Store, run_id: str, cell: str) -> Row:
    """Return the row of the only cell of a run whose names, such as MODEL/SCHEME/SOC, begin with `cell`.

    Raises RequestError.
    """
    matches = _matching(store, run_id, cell)
    if len(matches) != 1:
        which = "no cell" if not matches else "several cells"
        names = matches or map(folder_of, tables.rows(store, "cells", run_id))
        raise RequestError(f"CELL={cell}: {which} of run {run_id}; write one of {', '.join(names)}")
    return next(iter(matches.values()))


def _matching(store: Store, run_id: str, cell: str) -> dict[str, Row]:
    """Return the rows of the cells of a run whose names begin with `cell`, by the names."""
    rows = {folder_of(row): row for row in tables.rows(store, "cells", run_id)}
    return {folder: row for folder, row in rows.items() if _begins(folder, cell)}


def _begins(folder: str, cell: str) -> bool:
    return f"{folder}/".startswith(f"{cell.strip('/')}/")
