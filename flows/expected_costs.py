"""The expected costs of toolchain calls, from past runs. A sweep uses them to schedule its worker processes."""

from collections import defaultdict
from statistics import median

from qnnsweep.flows.log import warn
from qnnsweep.tasks.records.tables import SUBJECT_COLUMNS
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.scheduler import CostEstimate
from qnnsweep.tasks.toolchain.workers.supervisor import Subject

_RUNS = 10
"""The number of past runs from which the costs are read."""


def estimates(store: Store) -> dict[tuple[str, Subject], CostEstimate]:
    """Return, by stage and subject, the median seconds and the highest memory of the calls in the latest runs.

    A run whose table cannot be read is left out, and logged.
    """
    costs_of: dict[tuple[str, Subject], list[tuple[float, int]]] = defaultdict(list)
    problems: set[str] = set()
    latest = tables.runs(store)[-_RUNS:]
    for row in select(
        store, "work", (*SUBJECT_COLUMNS, "stage", "seconds", "peak_bytes"), runs=latest, problems=problems
    ):
        subject = tuple(row[name] for name in SUBJECT_COLUMNS if row[name] is not None)
        if subject:  # a comparison has no subject, because its cost depends on the capture
            costs_of[row["stage"], subject].append((row["seconds"], row["peak_bytes"]))
    for problem in sorted(problems):
        warn(f"expected costs: a run is left out: {problem}")
    return {
        call: CostEstimate(
            seconds=median(seconds for seconds, _ in costs), peak_bytes=max(peak_bytes for _, peak_bytes in costs)
        )
        for call, costs in costs_of.items()
    }
