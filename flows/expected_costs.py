"""What toolchain calls took, kept with each run: the next sweep plans its cores and memory with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from tasks.results.rows import SUBJECT
from tasks.storage import tables
from tasks.storage.store import Store
from tasks.toolchain.workers.scheduler import CostEstimate
from tasks.toolchain.workers.supervisor import Subject

_LOOKED_BACK = 10
"""How many runs are asked."""


def estimates(store: Store) -> dict[tuple[str, Subject], CostEstimate]:
    """By stage and subject the median seconds and the most memory of the last runs that did such work."""
    seen: dict[tuple[str, Subject], list[tuple[float, int]]] = defaultdict(list)
    for run in tables.runs(store)[-_LOOKED_BACK:]:
        for stage, subject, seconds, peak_bytes in _kept(store, run):
            seen[stage, subject].append((seconds, peak_bytes))
    return {
        call: CostEstimate(
            seconds=median(seconds for seconds, _ in costs), peak_bytes=max(peak_bytes for _, peak_bytes in costs)
        )
        for call, costs in seen.items()
    }


def _kept(store: Store, run_id: str) -> Iterator[tuple[str, Subject, float, int]]:
    for row in tables.read(store, "work", run_id).to_dict(orient="records"):
        subject = tuple(row[name] for name in SUBJECT if row[name] is not None)
        if subject:  # a comparison has none: it depends on what the device gave back
            yield row["stage"], subject, row["seconds"], row["peak_bytes"]
