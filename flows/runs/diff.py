"""Two runs side by side: cell by cell, series by series, operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from conf.schema import TrendConfig
from flows.runs.history import Gaps, Key, Row, changes, key, names, plain, value, worst_gaps
from tasks.errors import RequestError
from tasks.numerics.trend import OPERATOR_SERIES, SERIES, Series, beyond
from tasks.storage import tables
from tasks.storage.store import Store

CELL = ("model", "scheme", "soc", "backend", "device", "farm")
Verdict = Literal["regressed", "improved", "steady", "changed", "undefined"]
_SEEN = {"compared", "exact", "masked"}
_WORST_FIRST = ("introduced", "inherited", "blind", "within_grid", "exact")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something of a cell, or of one of its operators, that is not the same in both runs."""

    what: str
    """A series, or `outcome`, `status`, `verdict`; `operator` for one that only one run has."""
    operator: str | None
    unit: str
    before: float | str | None
    after: float | str | None
    limit: float | None
    """What a difference must exceed to count."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDifference:
    cell: Mapping[str, str | None]
    """The names of `CELL`, as the second run has them."""
    changed: Sequence[str]
    """What differs of all that makes the cell: toolchain, device, model, scheme, soc, configuration."""
    changes: Sequence[Change]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    run_a: str
    run_b: str
    only_in_a: Sequence[Mapping[str, str | None]]
    only_in_b: Sequence[Mapping[str, str | None]]
    cells: Sequence[CellDifference]
    """Those that both runs have, in the order of the second."""

    @property
    def regressions(self) -> int:
        return sum(change.verdict == "regressed" for cell in self.cells for change in cell.changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"regressions": self.regressions}


def diff(store: Store, run_a: str, run_b: str) -> Difference:
    """What the second run has that the first has not.

    Runs are named as `resolve` takes them. Floors are those of `TrendConfig`; where the second run was held against the
    nights before it, its own floors and its noise count.
    """
    config = TrendConfig()
    run_a, run_b = resolve(store, run_a), resolve(store, run_b)
    before, after = (plain(tables.read(store, "cells", run)) for run in (run_a, run_b))
    pairs = _pairs(before, after)
    side_a, side_b = (
        _Operators.of(plain(tables.read(store, "operators", run)), keys)
        for run, keys in (
            (run_a, {names(a): key(b) for a, b in pairs}),
            (run_b, {names(b): key(b) for _, b in pairs}),
        )
    )
    judged = {
        (key(row), row["series"]): row
        for row in plain(tables.read(store, "trends", run_b))
        if row["operator"] is None and row["mad"] is not None
    }
    cells = [
        CellDifference(
            cell=_named(b),
            changed=changes(a, b),
            changes=[
                *_series(a, b, judged, config),
                *(
                    _operators(key(b), side_a, side_b, config)
                    if a["operators_compared"] and b["operators_compared"]
                    else ()
                ),
            ],
        )
        for a, b in pairs
    ]
    paired_a, paired_b = {names(a) for a, _ in pairs}, {names(b) for _, b in pairs}
    return Difference(
        run_a=run_a,
        run_b=run_b,
        only_in_a=[_named(row) for row in before if names(row) not in paired_a],
        only_in_b=[_named(row) for row in after if names(row) not in paired_b],
        cells=cells,
    )


def resolve(store: Store, asked: str) -> str:
    """A run's id from itself, from its beginning, or from `latest` or `previous`. Raises RequestError."""
    known = tables.runs(store)
    found = {"latest": known[-1:], "previous": known[-2:-1]}.get(asked, [run for run in known if run.startswith(asked)])
    if asked in known:
        return asked
    if not asked or not found:
        raise RequestError(f"no run {asked!r} in {store.place}; there are: {', '.join(known) or 'none'}")
    if len(found) > 1:
        raise RequestError(f"{asked!r} begins several runs of {store.place}: {', '.join(found)}")
    return found[0]


def _pairs(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The cells that both have. One that moved to another device is the same cell, if there is no other of its name."""
    found: dict[Key, Row] = {}
    known = {key(row): row for row in before}
    for row in after:
        if key(row) in known:
            found[names(row)] = known.pop(key(row))
    left = [row for row in after if names(row) not in found]
    for row in left:
        same = [each for each in known.values() if _place(each) == _place(row)]
        if len(same) == 1 and sum(_place(each) == _place(row) for each in left) == 1:
            found[names(row)] = known.pop(key(same[0]))
    return [(found[names(row)], row) for row in after if names(row) in found]


def _place(row: Row) -> Key:
    return tuple(row[name] for name in ("model", "scheme", "soc", "backend"))


def _named(row: Row) -> dict[str, str | None]:
    return {name: row[name] for name in CELL}


def _series(a: Row, b: Row, judged: Mapping[tuple[Key, str], Row], config: TrendConfig) -> Iterator[Change]:
    if a["outcome"] != b["outcome"]:
        passed = (value(a, "passed"), value(b, "passed"))
        verdict: Verdict = "changed"
        if None not in passed and passed[0] != passed[1]:
            verdict = "improved" if passed[1] else "regressed"
        yield _change("outcome", a["outcome"], b["outcome"], verdict)
    for name, series in SERIES.items():
        if name != "passed":
            yield from _judged(name, None, series, value(a, name), value(b, name), config, judged.get((key(b), name)))


def _judged(
    name: str,
    operator: str | None,
    series: Series,
    before: float | None,
    after: float | None,
    config: TrendConfig,
    history: Row | None = None,
) -> Iterator[Change]:
    if before == after:
        return
    verdict: Verdict = "undefined"
    limit = None
    if before is not None and after is not None:
        floor = getattr(config.floors, name) * (abs(before) if series.relative else 1)
        limit = beyond(history["floor"], history["mad"], history["nights"], config) if history else floor
        gained = series.better * (after - before)
        verdict = "regressed" if -gained > limit else "improved" if gained > limit else "steady"
    yield _change(name, before, after, verdict, operator=operator, unit=series.unit, limit=limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Operators:
    """One run's operators against the edge graph, by the cell that both runs have."""

    rows: Mapping[Key, Mapping[str, Sequence[Row]]]
    gaps: Gaps

    @classmethod
    def of(cls, operators: Sequence[Row], keys: Mapping[Key, Key]) -> _Operators:
        rows: dict[Key, dict[str, list[Row]]] = {cell: {} for cell in keys.values()}
        for row in operators:
            if row["reference"] == "edge" and names(row) in keys:
                rows[keys[names(row)]].setdefault(row["operator"], []).append(row)
        return cls(rows=rows, gaps=worst_gaps(operators, keys))


def _operators(cell: Key, before: _Operators, after: _Operators, config: TrendConfig) -> Iterator[Change]:
    for operator in dict.fromkeys([*before.rows[cell], *after.rows[cell]]):
        then, now = before.rows[cell].get(operator), after.rows[cell].get(operator)
        if then is None or now is None:
            yield _change("operator", then and "there", now and "there", "changed", operator=operator)
            continue
        was, is_ = _status(then), _status(now)
        if was != is_:
            lost = was <= _SEEN and not is_ <= _SEEN
            words = [", ".join(sorted(each)) for each in (was, is_)]
            yield _change("status", words[0], words[1], "regressed" if lost else "changed", operator=operator)
        verdicts = _verdict(then), _verdict(now)
        if verdicts[0] != verdicts[1]:
            guilty = "regressed" if verdicts[1] == "introduced" else "changed"
            yield _change("verdict", *verdicts, guilty, operator=operator)
        for name, series in OPERATOR_SERIES.items():
            gaps = [side.gaps[cell, operator][name] for side in (before, after)]
            yield from _judged(name, operator, series, gaps[0], gaps[1], config)


def _status(rows: Sequence[Row]) -> set[str]:
    return {row["status"] for row in rows}


def _verdict(rows: Sequence[Row]) -> str | None:
    found = {row["verdict"] for row in rows}
    return next((verdict for verdict in _WORST_FIRST if verdict in found), None)


def _change(what: str, before: Any, after: Any, verdict: Verdict, **more: Any) -> Change:
    nothing: dict[str, Any] = {"operator": None, "unit": "", "limit": None}
    return Change(what=what, before=before, after=after, verdict=verdict, **nothing | more)
