"""The page of the comparison of two runs, beside the report of the second run."""

from collections.abc import Sequence
from pathlib import Path

from qnnsweep.flows.runs.diff import CellDifference, Change, Difference, cell_name, what_changed
from qnnsweep.flows.runs.regressions import with_unit
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.report.differences import CellDifferences, Line, render_differences
from qnnsweep.tasks.storage.store import Store

_ORDER = ("regressed", "improved", "changed", "steady", "undefined")


def write_page(difference: Difference, store: Store) -> Path | None:
    """Write the page, and return its path on this machine; None if the folder of the second run is not writable."""
    name = f"{run_folder(difference.run_b)}/diff-{difference.run_a}.html"
    page = render_differences(
        difference.run_a,
        difference.run_b,
        difference.regressions,
        [_in_words(cell) for cell in difference.cells],
        [cell_name(cell) for cell in difference.only_in_a],
        [cell_name(cell) for cell in difference.only_in_b],
    )
    try:
        store.files.write(name, page.encode())
    except EnvironmentUnusable:
        return None
    return store.files.local(name)


def _in_words(cell: CellDifference) -> CellDifferences:
    steady = [change for change in cell.changes if change.verdict in ("steady", "undefined")]
    changes = [change for change in cell.changes if change not in steady]
    return CellDifferences(
        name=cell_name(cell.cell), changed=cell.changed, changes=_lines(changes), steady=_lines(steady)
    )


def _lines(changes: Sequence[Change]) -> list[Line]:
    ordered = sorted(changes, key=lambda change: _ORDER.index(change.verdict))
    return [
        {
            "what": what_changed(change),
            "before": with_unit(change.before, change.unit),
            "after": with_unit(change.after, change.unit),
            "limit": with_unit(change.limit, change.unit),
            "verdict": change.verdict,
        }
        for change in ordered
    ]
