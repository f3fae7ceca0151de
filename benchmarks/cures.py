"""A test whether the first cure of a cell's sentence helps, and by as much as it says.

Every cell is measured with the scheme of its first cure, and judged by its lowest SNR.

- `cures`: the number of cells whose sentence names a cure
- `within_2_db`: the part of these whose gain is predicted to 2 dB, or to a fifth of the gain if that is more
- `helpful`: the part of these that gain at least 1 dB
- `did_not_compile`: the number of these that could not be measured

The models are in `ablation_models`; folders of configurations with other models can be given. None of them ships.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cells import EVERY_NAME, asked_cells

from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.conf.plan import Plan
    from qnnsweep.tasks.results.outcome import CellResult

SCHEMES = "8a8w,16a8w"
_HELPS_DB = 1.0
_CLOSE_DB, _CLOSE = 2.0, 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The first cure of a cell, and its gain. Numbers are None for a cell that was not measured."""

    cell: tuple[str, ...]
    before_db: float
    cure: str | None
    """None if the sentence names no cure."""
    predicted_db: float | None = None
    gain_db: float | None = None
    failure: str | None = None

    @property
    def is_close(self) -> bool:
        if self.predicted_db is None or self.gain_db is None:
            return False
        return abs(self.predicted_db - self.gain_db) <= max(_CLOSE_DB, _CLOSE * abs(self.gain_db))


def measure(plan: Plan) -> list[Judged]:
    """Measure every cell of the plan, and once more with its first cure."""
    from qnnsweep.conf.plan import PlannedCell
    from qnnsweep.flows.session import Session
    from qnnsweep.tasks.results.diagnosis import first_cure
    from qnnsweep.tasks.results.outcome import judge

    session = Session(plan, ())

    def lowest(cell: PlannedCell) -> tuple[CellResult, float | None]:
        (result,) = session.measure([cell])
        finals = judge(result).finals
        return result, finals and finals.final_snr_db

    judged: list[Judged] = []
    for cell in plan.cells:
        before, before_db = lowest(cell)
        names = cell.request.names
        if before_db is None:
            print("/".join(names), "has no lowest SNR:", before.error or "", flush=True)
            continue
        cure, row = first_cure(before), Judged(cell=names, before_db=before_db, cure=None)
        if cure is not None:
            row = replace(row, cure=cure.candidate.description, predicted_db=cure.predicted_db)
            request = replace(cell.request, scheme=cure.candidate.scheme)
            after, after_db = lowest(PlannedCell(request=request, impossible=None))
            if after_db is None:
                row = replace(row, failure=str(after.error or "no lowest SNR").partition("\n")[0])
            else:
                row = replace(row, gain_db=after_db - before_db)
        judged.append(row)
        print(_line(row), flush=True)
    return judged


def _line(row: Judged) -> str:
    if row.cure is None:
        return f"{'/'.join(row.cell)} {row.before_db:.1f} dB: no cure"
    gain = row.failure if row.gain_db is None else f"{row.gain_db:+.1f} dB"
    mark = "" if row.is_close else "  <- not close"
    return f"{'/'.join(row.cell)} {row.before_db:.1f} dB: {row.cure}: {row.predicted_db:+.1f} dB, was {gain}{mark}"


def main() -> int:
    options, overrides = asked_cells(__doc__, SCHEMES, EVERY_NAME)
    configure_prefect()
    from qnnsweep.conf.load import load
    from qnnsweep.flows.server import connect

    connect.ensure()
    from prefect import flow

    plan = load([*overrides, f"artifacts={options.artifacts}", "reuse=capture"], config_dirs=[Path(options.config_dir)])
    judged = flow(name="cures benchmark", validate_parameters=False)(measure)(plan)
    said = [cell for cell in judged if cell.cure is not None]
    summary = {
        "cures": len(said),
        "within_2_db": sum(cell.is_close for cell in said) / max(len(said), 1),
        "helpful": sum((cell.gain_db or 0.0) >= _HELPS_DB for cell in said) / max(len(said), 1),
        "did_not_compile": sum(cell.failure is not None for cell in said),
    }
    print(f"{len(judged)} cells: " + ", ".join(f"{name} {value:.3g}" for name, value in summary.items()))
    if options.json:
        print(json.dumps(summary | {"cells": [asdict(cell) for cell in judged]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
