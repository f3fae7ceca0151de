"""The evaluation of a cell with the model of the device's arithmetic, on the host."""

from collections.abc import Callable

from qnnsweep.flows.runs.files import read_cell_evidence
from qnnsweep.flows.runs.names import find_run_of_cell
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import LoweredProgram, Simulated
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.simulation import evaluated


def simulate(
    store: Store,
    run_id: str | None,
    cell: str,
    method: str | None,
    place: str | None,
    on_sample: Callable[[int, int], None],
) -> Simulated:
    """Return the measures of a cell of a run on the samples at a place; see `evaluated`. Raises RequestError."""
    return evaluated(lowered_program(store, run_id, cell), method, store, place, on_sample)


def lowered_program(store: Store, run_id: str | None, cell: str) -> LoweredProgram:
    """Return the program of a cell of a run. Raises RequestError if it was not compiled."""
    run_id, row = find_run_of_cell(store, run_id, cell)
    folder = folder_of(row)
    if (evidence := read_cell_evidence(run_id, folder, store)) is None:
        raise RequestError(f"CELL={cell}: it was not compiled; see its row in the report")
    return evidence.lowered
