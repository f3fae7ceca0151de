"""The comparison of a program that was executed elsewhere: its operators, as in a run of qnnsweep."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from qnnsweep.conf.load import load
from qnnsweep.conf.units import GIB
from qnnsweep.flows.cells.toolchains import MODULES_OF_CALLS
from qnnsweep.tasks.comparison.foreign import ForeignComparison, compare_foreign
from qnnsweep.tasks.records.cell_rows import CellIdentity
from qnnsweep.tasks.records.tables import by_columns
from qnnsweep.tasks.results.rows import device_effects, operator_row
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk, identity
from qnnsweep.tasks.toolchain.captured_files import CapturedFiles
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.scheduler import Scheduler
from qnnsweep.tasks.toolchain.workers.supervisor import Supervisor

_DEADLINE_S, _MEMORY_GIB = 1800, 16
INSPECTOR = "inspector_snr_db"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedOperators:
    """The rows of the operators, with the columns of the table `operators` and those of ExecuTorch's Inspector."""

    compared_operators: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    outputs_reference: str
    """The program that the outputs are compared with: the exported program, or the edge program."""
    inspector_failed: str | None


def compared_operators(files: CapturedFiles) -> ComparedOperators:
    """Compare every operator with its references. Raises EvidenceError, RequestError and EnvironmentUnusable."""
    tolerance = load([]).cells[0].request.tolerance
    with tempfile.TemporaryDirectory() as folder:
        store = Store.at(folder)
        call = "compare", compare_foreign, files, tolerance.operators, store
        found = _workers(store).call(*call, subject=(files.program.name,), compiles=False).value
    rungs = ("device", "edge") if found.comparison.operators else ("device",)
    return ComparedOperators(
        compared_operators=list(_rows(found, files)),
        outputs=[asdict(row) for row in found.comparison.outputs if row.rung in rungs],
        outputs_reference=found.reference,
        inspector_failed=found.inspector_failed,
    )


def _rows(found: ForeignComparison, files: CapturedFiles) -> Iterator[dict[str, Any]]:
    where = CellIdentity(
        run_id="", model=files.program.stem, scheme="", soc=None, toolchain="", backend="", device="elsewhere"
    )
    effects = device_effects(found.comparison.budget)
    for row in found.comparison.operators:
        effect = effects.get((row.operator.name, row.sample))
        columns = by_columns(operator_row(where, row, found.lowered.role(row.sample), effect))
        values = {name: value for name, value in columns.items() if name not in CellIdentity.__slots__}
        has_row = row.operator.index in found.inspector
        note = None if has_row else found.inspector_failed or "the Inspector has no row that ends with this operator"
        yield values | {INSPECTOR: found.inspector.get(row.operator.index), "inspector": note}


def _workers(store: Store) -> WorkerPool:
    sdk = find_sdk(os.environ)
    supervisor = Supervisor(
        environment=sdk.environment(os.environ),
        store=store,
        scheduler=Scheduler(parallel=1, memory_bytes=_MEMORY_GIB * GIB),
        deadline_s=_DEADLINE_S,
        memory_bytes=_MEMORY_GIB * GIB,
        modules=MODULES_OF_CALLS,
    )
    return WorkerPool(identity(sdk), supervisor)
