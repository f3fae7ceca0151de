"""A run as experiment trackers have it: parameters, metrics and tags of the whole run, and of each cell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from qnnsweep.conf.names import AXES
from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.cell_rows import CellRow
from qnnsweep.tasks.records.tables import Row, columns
from qnnsweep.tasks.report.counts import Counts, cell_key, count
from qnnsweep.tasks.report.formats import cells as of

_VERSIONS = ("python", "torch", "executorch", "torchao", "qnn")
_LEFT_OUT = "tolerance.operators."  # hundreds of settings
_INDICES = ("worst_sample",)
_METRICS = [column.name for column in columns(CellRow) if column.kind in (int, float) and column.name not in _INDICES]
_TAGS = ("outcome", "stage", "final_difference", "error_type", "error", "reason", "diagnosis", "worst_operator",
         "worst_operator_verdict", "worst_operator_cause")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    """What a tracker calls a run: a cell, or the whole run of qnnsweep."""

    name: str
    parameters: Mapping[str, str]
    metrics: Mapping[str, float]
    """The numbers by name, which contains the unit. A number that is not defined is left out."""
    tags: Mapping[str, str]
    has_failed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    whole: Tracked
    cells: Sequence[Tracked]
    started: datetime
    ended: datetime
    report: Path | None
    """The report on this machine; None if it is not stored any more."""

    @property
    def run_id(self) -> str:
        return self.whole.name


def tracked(run: RunFacts, cells: Sequence[Row], trends: Sequence[Row], report: Path | None) -> TrackedRun:
    """Return a run for trackers, from its rows of `cells` and `trends`."""
    counts, started = count(cells, trends), datetime.fromisoformat(run.started)
    return TrackedRun(
        whole=_whole(run, counts),
        cells=[_cell(row, counts) for row in cells],
        started=started,
        ended=started + timedelta(seconds=run.seconds),
        report=report,
    )


def _whole(run: RunFacts, counts: Counts) -> Tracked:
    of_cells = {"cells": counts.cells, **{f"cells_{outcome}": number for outcome, number in counts.outcomes.items()}}
    worse = {"cells_regressed": len(counts.regressed), "cells_worse_since_an_earlier_run": len(counts.still_bad)}
    work = {"run_s": run.seconds, "toolchain_calls": run.toolchain_calls, "results_reused": run.reused}
    return Tracked(
        name=run.run_id,
        parameters={"command": " ".join(run.command)},
        metrics=_floats(of_cells | worse | work),
        tags={"summary": ", ".join(counts.in_words())},
        has_failed=counts.not_passed > 0,
    )


def _cell(row: Row, counts: Counts) -> Tracked:
    settings = (str(setting).split("=", 1) for setting in row["settings"] or ())
    named = {name: row[name] for name in (*AXES, *_VERSIONS)}
    numbers = {name: row[name] for name in _METRICS} | dict(_delegated_share(row))
    return Tracked(
        name=of.name(row),
        parameters={name: str(value) for name, value in named.items() if value is not None}
        | {name: value for name, value in settings if not name.startswith(_LEFT_OUT)},
        metrics=_floats(numbers),
        tags={name: str(value) for name, value in _tags(row, counts).items() if value is not None},
        has_failed=of.outcome(row) not in ("passed", "impossible"),
    )


def _delegated_share(row: Row) -> Iterator[tuple[str, float]]:
    delegated, others = row["delegated_nodes"], row["non_delegated_nodes"]
    if delegated is not None and others is not None and delegated + others:
        yield "delegated_share", delegated / (delegated + others)


def _tags(row: Row, counts: Counts) -> Mapping[str, str | None]:
    key = cell_key(row)
    verdict = "regressed" if key in counts.regressed else "still_bad" if key in counts.still_bad else None
    return {name: row[name] for name in _TAGS} | {"verdict": verdict}


def _floats(numbers: Mapping[str, float | None]) -> Mapping[str, float]:
    return {name: float(number) for name, number in numbers.items() if number is not None}
