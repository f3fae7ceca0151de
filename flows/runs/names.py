"""The names of runs and cells that commands accept. A run: an id, its beginning, `latest` or `previous`."""

from collections.abc import Iterable, Sequence

from qnnsweep.conf.errors import there_are
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.records.tables import CELL_COLUMNS, Row
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

_NAMES = (*CELL_COLUMNS, "farm")
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
    cells = tables.rows(store, "cells", run_id)
    if name is None and not _named(cell, cells):
        names = select(store, "cells", _NAMES, runs=tables.runs(store)[-_SEARCHED:], problems=set())
        if found := _named(cell, names):
            run_id = found[-1]["run_id"]
            cells = tables.rows(store, "cells", run_id)
    return run_id, _only(cell, cells, run_id)


def find_cell(store: Store, run_id: str, cell: str) -> Row:
    """Return the row of the only cell of a run whose names, such as MODEL/SCHEME/SOC, begin with `cell`.

    Raises RequestError.
    """
    return _only(cell, tables.rows(store, "cells", run_id), run_id)


def _only(cell: str, cells: Sequence[Row], run_id: str) -> Row:
    found = _named(cell, cells)
    if len(found) != 1:
        which = "no cell" if not found else "several cells"
        names = ", ".join(map(folder_of, found or cells))
        raise RequestError(f"CELL={cell}: {which} of run {run_id}; write one of {names}")
    return found[0]


def _named(cell: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the table `cells` whose names begin with `cell`."""
    begin = f"{cell.strip('/')}/"
    return [row for row in rows if f"{folder_of(row)}/".startswith(begin)]
