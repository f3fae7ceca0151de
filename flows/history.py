"""What earlier runs of a cell say about this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.storage import tables
from tasks.storage.store import Store

_CELL = ("model", "scheme", "soc", "device", "backend")
_LOOKED_BACK = 30
"""How many runs are searched for a cell's last one."""

Row = Mapping[str, Any]


def with_coverage_falls(store: Store, run_id: str, cells: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of `cells`, with a word in `reason` where fewer operators could be compared than in the cell's last run.

    Coverage is the share of compared operators: how many samples were captured does not matter.
    """
    before = dict(_last_covered(store, run_id, {_key(row) for row in cells if row["operators_total"]}))
    told: list[dict[str, Any]] = []
    for row in cells:
        said = dict(row)
        earlier = before.get(_key(row))
        if earlier is not None and _coverage(row) < _coverage(earlier):
            fall = (
                f"coverage fell: {row['operators_compared'] or 0} of {row['operators_total']} operators compared, "
                f"{earlier['operators_compared']:.0f} of {earlier['operators_total']:.0f} in run {earlier['run_id']}"
            )
            said["reason"] = f"{said['reason']}; {fall}" if said["reason"] else fall
        told.append(said)
    return told


def _last_covered(store: Store, run_id: str, wanted: set[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], Row]]:
    """The newest earlier row of each wanted cell in which anything was compared."""
    missing = set(wanted)
    earlier = [each for each in tables.runs(store) if each < run_id]
    for run in reversed(earlier[-_LOOKED_BACK:]):
        if not missing:
            return
        cells = tables.read(store, "cells", run)
        for row in cells.loc[cells["operators_compared"] > 0].to_dict(orient="index").values():
            key = _key(row)
            if key in missing:
                missing.discard(key)
                yield key, row


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CELL)


def _coverage(row: Row) -> float:
    return (row["operators_compared"] or 0) / row["operators_total"]
