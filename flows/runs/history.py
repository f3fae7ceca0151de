"""A run's table `trends`: what the nights before say about each cell, and what changed when it got worse."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pandas

from conf.schema import TrendConfig
from tasks.numerics.trend import BAD, OPERATOR_SERIES, SERIES, Judgement, Night, Series, judge
from tasks.storage import tables
from tasks.storage.series import select
from tasks.storage.store import Store

Row = Mapping[str, Any]
Key = tuple[str | None, ...]
Gaps = dict[tuple[Key, str], Row]
"""A night's operators: a cell's key and an operator's name to its gaps, each of the worst sample."""

NAMES = ("run_id", "model", "scheme", "soc", "device", "backend")
VERSIONS = ("python", "torch", "executorch", "torchao", "qnn")
DIGESTS = {
    "model_digest": "model",
    "scheme_digest": "scheme",
    "soc_digest": "soc",
    "request_digest": "configuration",
}
_MADE = {"passed", "coverage"}
CELLS = (
    *NAMES,
    *("farm", "verb", "outcome", "operators_total", "operators_compared"),
    *(name for name in SERIES if name not in _MADE),
    *VERSIONS,
    *DIGESTS,
)
"""The columns of `cells` that are needed of a night."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """The earlier nights of a run's cells, oldest first, and what was told of them if it was not `steady`."""

    nights: dict[Key, list[Row]] = field(default_factory=lambda: defaultdict[Key, list[Row]](list))
    told: dict[tuple[str, Key, str, str | None], tuple[str, str | None]] = field(
        default_factory=dict[tuple[str, Key, str, str | None], tuple[str, str | None]]
    )

    @property
    def runs(self) -> set[str]:
        return {row["run_id"] for rows in self.nights.values() for row in rows}


def trends(
    store: Store, run_id: str, cells: Sequence[Row], operators: Sequence[Row], config: TrendConfig
) -> list[dict[str, Any]]:
    """The rows of `trends` for a run's rows of `cells` and `operators`: each series of each cell, and those of the
    operators that got worse. Runs that began later do not count.
    """
    past = _past(store, run_id, cells, config)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        nights = [*past.nights.get(key(cell), ()), cell]
        for name, series in SERIES.items():
            values = [value(night, name) for night in nights]
            rows.append(_row(name, None, series, nights, values, past, config))
    return rows + list(_worse_operators(store, past, cells, operators, config))


def key(row: Row) -> Key:
    """What a cell is followed by over the nights: on a farm another device may have run it."""
    return (
        *(row[name] for name in ("model", "scheme", "soc", "backend")),
        row["farm"],
        None if row["farm"] else row["device"],
    )


def value(cell: Row, series: str) -> float | None:
    """A cell's value of a series of `SERIES`; None where it is not defined."""
    if series == "passed":
        return {"passed": 1.0, "out_of_tolerance": 0.0, "failed": 0.0}.get(cell["outcome"])
    if series == "coverage":
        through = cell["outcome"] in ("passed", "out_of_tolerance") and cell["operators_total"]
        return (cell["operators_compared"] or 0) / cell["operators_total"] if through else None
    return None if cell[series] is None else float(cell[series])


def changes(before: Row, after: Row) -> list[str]:
    """What differs between two rows of `cells`, of all that makes a cell; what is unknown does not differ."""
    named = [(name, name) for name in VERSIONS]
    # A cell that never came to a device is called by its farm.
    if all(row["device"] != row["farm"] for row in (before, after)):
        named.append(("device", "device"))
    known = [(column, words) for column, words in named if before[column] and after[column]]
    told = [
        f"{words} {before[column]} -> {after[column]}" for column, words in known if before[column] != after[column]
    ]
    return told + [
        words
        for column, words in DIGESTS.items()
        if before[column] and after[column] and before[column] != after[column]
    ]


def plain(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """A table's rows with None for all of pandas' nulls."""
    columns = {str(name): [None if _is_null(each) else each for each in frame[name].tolist()] for name in frame}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def worst_gaps(operators: Iterable[Row], keys: Mapping[Key, Key]) -> Gaps:
    """The worst sample of each operator against the edge graph. `keys` are those of the cells by their `NAMES`."""
    found: dict[tuple[Key, str], dict[str, float | None]] = {}
    for row in operators:
        if row["reference"] == "edge" and (cell := keys.get(names(row))):
            gaps = found.setdefault((cell, row["operator"]), dict.fromkeys(OPERATOR_SERIES))
            for name, worst in gaps.items():
                gap = row[name]
                gaps[name] = gap if worst is None else worst if gap is None else min(worst, gap)
    return dict(found)


names: Callable[[Row], Key] = itemgetter(*NAMES)
"""A row's `NAMES`."""


def _past(store: Store, run_id: str, cells: Sequence[Row], config: TrendConfig) -> Past:
    enough = 2 * config.nights
    past = Past()
    missing = {key(cell) for cell in cells}
    runs = [run for run in tables.runs(store) if run < run_id]
    while runs and missing:
        runs, chunk = runs[:-enough], set(runs[-enough:])
        where = {name: {str(each[place]) for each in missing} for place, name in enumerate(("model", "scheme", "soc"))}
        found: dict[Key, list[Row]] = defaultdict(list)
        for row in plain(select(store, "cells", CELLS, where=where, runs=chunk)):
            # What was judged again is the same night.
            if row["verb"] in (None, "run") and key(row) in missing:
                found[key(row)].append(row)
        for each, rows in found.items():
            past.nights[each] = [*rows, *past.nights[each]][-enough:]
        missing = {each for each in missing if len(past.nights[each]) < enough}
    columns = (*NAMES, "farm", "series", "operator", "verdict", "first_bad_run")
    unsteady = {"verdict": {*BAD, "improved"}}
    for row in plain(select(store, "trends", columns, where=unsteady, runs=past.runs)):
        place = (row["run_id"], key(row), row["series"], row["operator"])
        past.told[place] = (row["verdict"], row["first_bad_run"])
    return past


def _row(
    name: str,
    operator: str | None,
    series: Series,
    nights: Sequence[Row],
    values: Sequence[float | None],
    past: Past,
    config: TrendConfig,
) -> dict[str, Any]:
    cell, cell_key = nights[-1], key(nights[-1])
    seen: list[Night] = []
    for row, number in zip(nights, values, strict=True):
        verdict, first_bad = past.told.get((row["run_id"], cell_key, name, operator), (None, None))
        seen.append(
            Night(
                run=row["run_id"],
                value=number,
                passed=row["outcome"] == "passed",
                verdict=verdict,
                first_bad_run=first_bad,
            )
        )
    told = judge(seen[:-1], seen[-1], series, getattr(config.floors, name), config)
    return {
        **{column: cell[column] for column in NAMES},
        "farm": cell["farm"],
        "series": name,
        "operator": operator,
        "unit": series.unit,
        "value": values[-1],
        "nights": told.nights,
        "median": told.median,
        "mad": told.mad,
        "floor": told.floor,
        "verdict": told.verdict,
        "first_bad_run": told.first_bad_run,
        "changed": _changed(nights, told),
        "runs": [night.run for night in seen[-2 * config.nights :]],
        "values": list(values[-2 * config.nights :]),
    }


def _changed(nights: Sequence[Row], told: Judgement) -> list[str]:
    by_run = {row["run_id"]: row for row in nights}
    good, bad = by_run.get(told.last_good_run or ""), by_run.get(told.first_bad_run or "")
    return changes(good, bad) if good and bad else []


def _worse_operators(
    store: Store, past: Past, cells: Sequence[Row], operators: Sequence[Row], config: TrendConfig
) -> Iterator[dict[str, Any]]:
    """The rows of those operators' series that are bad, in the order of the run's operators."""
    tonight = worst_gaps(operators, {names(cell): key(cell) for cell in cells})
    doubtful = _doubtful(store, past, tonight, config)
    if not doubtful:
        return
    wanted = {(cell, operator) for cell, operator, _ in doubtful}
    before = _gaps(store, past, past.runs, wanted)
    by_key = {key(cell): cell for cell in cells}
    for (cell, operator), gaps in tonight.items():
        for name, series in OPERATOR_SERIES.items():
            if (cell, operator, name) in doubtful:
                nights = [*past.nights[cell], by_key[cell]]
                values = [before.get(row["run_id"], {}).get((cell, operator), {}).get(name) for row in nights[:-1]]
                row = _row(name, operator, series, nights, [*values, gaps[name]], past, config)
                if row["verdict"] in BAD:
                    yield row


def _doubtful(store: Store, past: Past, tonight: Gaps, config: TrendConfig) -> set[tuple[Key, str, str]]:
    """Operators' series that may be worse than their baseline: only of them all nights are read.

    Those that are worse, by more than the floor, than on their cell's last good night or on its oldest one; and those
    that were bad a night or two ago.
    """
    good = {cell: [row["run_id"] for row in rows if row["outcome"] == "passed"] for cell, rows in past.nights.items()}
    ends = {cell: {runs[0], runs[-1]} for cell, runs in good.items() if runs}
    seen = _gaps(store, past, {run for runs in ends.values() for run in runs}, set(tonight))
    found: set[tuple[Key, str, str]] = set()
    for (cell, operator), gaps in tonight.items():
        lately = [row["run_id"] for row in past.nights.get(cell, ())[-3:]]
        for name in OPERATOR_SERIES:
            now, floor = gaps[name], getattr(config.floors, name)
            then = [seen.get(run, {}).get((cell, operator), {}).get(name) for run in ends.get(cell, ())]
            worse = now is not None and any(each is not None and each - now > floor for each in then)
            if worse or any((run, cell, name, operator) in past.told for run in lately):
                found.add((cell, operator, name))
    return found


def _gaps(store: Store, past: Past, runs: Collection[str], wanted: Collection[tuple[Key, str]]) -> dict[str, Gaps]:
    """The gaps of the wanted operators in each of these earlier runs."""
    if not runs or not wanted:
        return {}
    keys = {names(row): cell for cell, rows in past.nights.items() for row in rows if row["run_id"] in runs}
    where = {
        "reference": {"edge"},
        "operator": {operator for _, operator in wanted},
        "model": {str(cell[0]) for cell, _ in wanted},
    }
    columns = (*NAMES, "operator", "reference", *OPERATOR_SERIES)
    found: dict[str, list[Row]] = defaultdict(list)
    for row in plain(select(store, "operators", columns, where=where, runs=runs)):
        found[row["run_id"]].append(row)
    return {run: worst_gaps(rows, keys) for run, rows in found.items()}
