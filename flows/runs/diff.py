"""The comparison of two runs: cell by cell, series by series, operator by operator and step by step."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Literal

from rich.text import Text

from qnnsweep.conf.errors import printable
from qnnsweep.conf.names import AXES
from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.changes import changes
from qnnsweep.flows.runs.history import (
    OPERATORS,
    STEPS,
    Gaps,
    Key,
    Parts,
    Row,
    is_judged,
    key,
    names,
    target,
    value,
    worst_gaps,
)
from qnnsweep.flows.runs.names import resolve
from qnnsweep.flows.runs.regressions import with_unit
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.numerics.series import SERIES, Series
from qnnsweep.tasks.records.vocabulary import COMPARED
from qnnsweep.tasks.report import one_line_table
from qnnsweep.tasks.report.format import plural
from qnnsweep.tasks.report.formats.cells import other_toolchain
from qnnsweep.tasks.report.one_line_table import OneLineTable
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

_LOG = logging.getLogger(__name__)
CELL = (*AXES, "farm")
Verdict = Literal["regressed", "improved", "steady", "changed", "undefined", "within_noise"]
_SIGMAS = 4 * sqrt(2)
"""The limit of a difference in standard deviations of one night: four of those of a difference of two nights."""
_BESIDE_FINAL_DB = 20.0
"""Noise inside a cell that is at most a hundredth of the noise of its final outputs has no effect on these outputs."""
_FINAL_CEILING_DB = 80.0
"""The SNR of final outputs above which a change does not matter: an error of a ten-thousandth of the signal."""
_MOST_NAMED = 3
_WORST_FIRST = ("introduced", "biased", "contradicted", "grid", "inherited", "blind", "within_grid", "exact")

_COLUMNS = ("what", "before", "after", "limit", "verdict")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A property of a cell, or of one of its operators or steps, that differs between the two runs."""

    what: str
    """`outcome`, `status`, `verdict`, `token`, `origin`, the name of a series, or `operator` or `step` if only one run
    has the operator or the step."""
    operator: str | None = None
    step: str | None = None
    """The step in words, such as `step 3 (decode) of "prompt 0"`; None if the change is not about a step."""
    unit: str = ""
    before: float | str | None
    after: float | str | None
    limit: float | None = None
    """A numeric difference is `regressed` or `improved` only if it exceeds this limit. None if there is no limit."""
    verdict: Verdict
    """`within_noise`: the difference matters, but the noise of earlier nights can be the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDifference:
    cell: Mapping[str, str | None]
    """The cell's values of the columns `CELL` in the second run."""
    changed: Sequence[str]
    """The cell's inputs that differ between the runs: versions, device, model, scheme, soc, configuration."""
    changes: Sequence[Change]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    run_a: str
    run_b: str
    only_in_a: Sequence[Mapping[str, str | None]]
    only_in_b: Sequence[Mapping[str, str | None]]
    cells: Sequence[CellDifference]
    """The cells that both runs have, in the order of the second run."""

    @property
    def regressions(self) -> int:
        """The number of cells of which something regressed."""
        return sum(any(change.verdict == "regressed" for change in cell.changes) for cell in self.cells)

    @property
    def is_worse(self) -> bool:
        """Whether a cell regressed, or is lost: the second run does not have it."""
        return bool(self.regressions or self.only_in_a)

    def of_regressed(self) -> "Difference":
        """Return the difference with those cells alone of which something regressed."""
        cells = [cell for cell in self.cells if any(change.verdict == "regressed" for change in cell.changes)]
        return replace(self, cells=cells, only_in_b=())

    def in_words(self) -> str:
        cells = plural(len(self.cells), "common cell")
        regressed = f"{self.regressions:,} of {cells} regressed" if self.regressions else f"no regression in {cells}"
        return regressed + (f", {plural(len(self.only_in_a), 'cell')} lost" if self.only_in_a else "")


def diff(store: Store, run_a: str, run_b: str) -> Difference:
    """Return the differences of the second run from the first.

    `run_a`, `run_b`: any names that `resolve` accepts. The limit of a series is the floor in the defaults of
    `TrendConfig`. But if the second run's table `trends` has the noise of a cell's series, the limit is `_SIGMAS` times
    that noise, if this is more than the floor. If this table cannot be read, it is left out, and logged. Raises
    RequestError for runs without a common cell.
    """
    sides = (
        Side(name=run, **{table: tables.rows(store, table, run) for table in ("cells", "operators", "steps")})
        for run in (resolve(store, run_a), resolve(store, run_b))
    )
    difference = differences(*sides, trends=_trends(store, resolve(store, run_b)))
    if not difference.cells:
        only = zip((difference.run_a, difference.run_b), (difference.only_in_a, difference.only_in_b), strict=True)
        have = "; ".join(f"{run} has {_listed(cells)}" for run, cells in only)
        raise RequestError(f"the runs have no cell in common, so nothing can be compared: {have}")
    return difference


def _listed(cells: Sequence[Mapping[str, str | None]]) -> str:
    names, more = [cell_name(cell) for cell in cells[:_MOST_NAMED]], len(cells) - _MOST_NAMED
    return ", ".join(names or ["no cell"]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """The rows of the tables `cells`, `operators` and `steps` on one side of a comparison."""

    name: str
    cells: Sequence[Row]
    operators: Sequence[Row]
    steps: Sequence[Row]


def differences(before: Side, after: Side, *, trends: Sequence[Row] = ()) -> Difference:
    """Return the differences of the second side from the first. `trends`: rows with the noise of the second side."""
    config = TrendConfig()
    pairs = pairs_of(before.cells, after.cells)
    keys_a, keys_b = {names(a): key(b) for a, b in pairs}, {names(b): key(b) for _, b in pairs}
    operators = _Rows.of(OPERATORS, before.operators, keys_a), _Rows.of(OPERATORS, after.operators, keys_b)
    steps = _Rows.of(STEPS, before.steps, keys_a), _Rows.of(STEPS, after.steps, keys_b)
    whole = (row for row in trends if row["operator"] is None and row["step"] is None)
    noise = {(key(row), row["series"]): row for row in whole if row["noise"] is not None}
    cells: list[CellDifference] = []
    for a, b in pairs:
        differing = list(_series(a, b, noise, config))
        ceiling = _ceiling(a, b)
        if a["operators_compared"] and b["operators_compared"]:
            differing += _operators(key(b), *operators, config, ceiling)
        differing += _steps(key(b), *steps, config, ceiling)
        cells.append(CellDifference(cell=_named(b), changed=changes(a, b), changes=differing))
    return Difference(
        run_a=before.name,
        run_b=after.name,
        only_in_a=[_named(row) for row in before.cells if names(row) not in keys_a],
        only_in_b=[_named(row) for row in after.cells if names(row) not in keys_b],
        cells=cells,
    )


def _trends(store: Store, run_id: str) -> Sequence[Row]:
    problems: set[str] = set()
    columns = (*CELL, "series", "operator", "step", "noise", "floor")
    rows = select(store, "trends", columns, runs={run_id}, problems=problems)
    for problem in problems:
        _LOG.warning("diff: the noise of earlier nights is left out: %s", problem)
    return rows


def pairs_of(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the two rows of every cell that both runs have.

    Two rows with different devices are paired only if no other unpaired row of either run has the same `TARGET`.
    """
    earlier: dict[Key, Row] = {}
    known = {key(row): row for row in before}
    for row in after:
        if key(row) in known:
            earlier[names(row)] = known.pop(key(row))
    left = [row for row in after if names(row) not in earlier]
    for row in left:
        same = [other for other in known.values() if target(other) == target(row)]
        if len(same) == 1 and sum(target(other) == target(row) for other in left) == 1:
            earlier[names(row)] = known.pop(key(same[0]))
    return [(earlier[names(row)], row) for row in after if names(row) in earlier]


def _named(row: Row) -> dict[str, str | None]:
    return {name: row[name] for name in CELL}


def _series(a: Row, b: Row, trends: Mapping[tuple[Key, str], Row], config: TrendConfig) -> Iterator[Change]:
    if a["outcome"] != b["outcome"]:
        passed = (value(a, "passed"), value(b, "passed"))
        verdict: Verdict = "changed"
        if None not in passed and passed[0] != passed[1]:
            verdict = "improved" if passed[1] else "regressed"
        yield Change(what="outcome", before=a["outcome"], after=b["outcome"], verdict=verdict)
    for name, series in SERIES.items():
        before, after = value(a, name), value(b, name)
        if name != "passed" and is_judged(name, a, b):
            floor, trend = getattr(config.floors, name), trends.get((key(b), name))
            ceiling = _FINAL_CEILING_DB if name == "final_snr_db" else _ceiling(a, b)
            yield from number_change(name, series, before, after, floor, trend, ceiling)
        elif name != "passed" and before != after:
            yield Change(what=name, unit=series.unit, before=before, after=after, verdict="changed")


def _ceiling(a: Row, b: Row) -> float:
    """Return the SNR in dB above which noise inside the cell has no effect on its final outputs, in neither run."""
    finite = [row["final_snr_db"] for row in (a, b) if row["final_snr_db"] is not None]
    if any(row["final_difference"] not in ("none", "finite") for row in (a, b)):
        return inf
    return max(finite) + _BESIDE_FINAL_DB if finite else -inf


def number_change(
    name: str,
    series: Series,
    before: float | None,
    after: float | None,
    floor: float,
    trend: Row | None = None,
    ceiling: float = inf,
) -> Iterator[Change]:
    """Yield the change of a series if its value differs. `floor`: its limit, unless `trend` has the noise.

    `ceiling`: an SNR above it counts as this SNR.
    """
    if before == after:
        return
    verdict: Verdict = "undefined"
    limit = None
    if before is not None and after is not None:
        floor = floor * (abs(before) if series.relative else 1)
        limit = max(trend["floor"], _SIGMAS * trend["noise"]) if trend else floor
        most = ceiling if series.unit == "dB" else inf
        gained = series.better * (min(after, most) - min(before, most))
        verdict = "regressed" if -gained > limit else "improved" if gained > limit else "steady"
        if verdict == "steady" and abs(gained) > floor:
            verdict = "within_noise"
    yield Change(what=name, unit=series.unit, before=before, after=after, limit=limit, verdict=verdict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """One run's operators or steps. `rows`: by the cell's key in the second run, then by the part's name."""

    parts: Parts
    rows: Mapping[Key, Mapping[str, Sequence[Row]]]
    gaps: Gaps

    @classmethod
    def of(cls, parts: Parts, table: Sequence[Row], keys: Mapping[Key, Key]) -> "_Rows":
        rows: dict[Key, dict[str, list[Row]]] = {cell: {} for cell in keys.values()}
        for row in table:
            if names(row) in keys and (part := parts.name(row)) is not None:
                rows[keys[names(row)]].setdefault(part, []).append(row)
        return cls(parts=parts, rows=rows, gaps=worst_gaps(parts, table, keys))

    def series(self, cell: Key, part: str, after: "_Rows", config: TrendConfig, ceiling: float) -> Iterator[Change]:
        """Yield the changes of a part's series between this run and the second run. `ceiling`: see `number_change`."""
        for name, series in self.parts.series.items():
            before, now = (side.gaps[cell, part][name] for side in (self, after))
            floor = getattr(config.floors, name)
            for change in number_change(name, series, before, now, floor, ceiling=ceiling):
                yield replace(change, **{self.parts.column: part})


def _operators(cell: Key, before: _Rows, after: _Rows, config: TrendConfig, ceiling: float) -> Iterator[Change]:
    for operator in dict.fromkeys([*before.rows[cell], *after.rows[cell]]):
        then, now = before.rows[cell].get(operator), after.rows[cell].get(operator)
        if then is None or now is None:
            was, is_ = ("there" if rows else None for rows in (then, now))
            yield Change(what="operator", operator=operator, before=was, after=is_, verdict="changed")
            continue
        before_set, after_set = ({row["status"] for row in rows} for rows in (then, now))
        if before_set != after_set:
            lost = before_set <= COMPARED and not after_set <= COMPARED
            was, is_ = (", ".join(sorted(statuses)) for statuses in (before_set, after_set))
            verdict: Verdict = "regressed" if lost else "changed"
            yield Change(what="status", operator=operator, before=was, after=is_, verdict=verdict)
        was, is_ = _verdict(then), _verdict(now)
        if was != is_:
            snr_db = after.gaps[cell, operator]["introduced_snr_db"]
            is_heard = snr_db is None or snr_db < ceiling
            verdict = "regressed" if is_ == "introduced" and is_heard else "changed"
            yield Change(what="verdict", operator=operator, before=was, after=is_, verdict=verdict)
        yield from before.series(cell, operator, after, config, ceiling)


def _steps(cell: Key, before: _Rows, after: _Rows, config: TrendConfig, ceiling: float) -> Iterator[Change]:
    """Yield what differs between the steps of a cell, and the first token of every sequence that differs."""
    differing: set[int] = set()  # the sequences with a token that differs: the later tokens follow from it
    for step in dict.fromkeys([*before.rows[cell], *after.rows[cell]]):
        then, now = before.rows[cell].get(step), after.rows[cell].get(step)
        if then is None or now is None:
            was, is_ = ("there" if rows else None for rows in (then, now))
            yield Change(what="step", step=step, before=was, after=is_, verdict="changed")
            continue
        for a, b in zip(then, now, strict=False):  # several, if sequences have the same name
            if a["token"] != b["token"] and b["sample"] not in differing:
                differing.add(b["sample"])
                right = [row["token"] == row["token_reference"] for row in (a, b)]
                verdict: Verdict = "changed" if right[0] == right[1] else "improved" if right[1] else "regressed"
                yield Change(what="token", step=step, before=_token(a), after=_token(b), verdict=verdict)
            if a["origin"] != b["origin"]:
                yield Change(what="origin", step=step, before=a["origin"], after=b["origin"], verdict="changed")
        # The change `token` says more than this series.
        of_step = before.series(cell, step, after, config, ceiling)
        yield from (change for change in of_step if change.what != "same_token")


def _token(step: Row) -> str | None:
    """Return the token of a step, with its text if it is known; None if the step chose no token."""
    if step["token"] is None:
        return None
    return str(step["token"]) if step["text"] is None else f"{step['token']} {step['text']!r}"


def _verdict(rows: Sequence[Row]) -> str | None:
    verdicts = {row["verdict"] for row in rows}
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), None)


def diff_table(difference: Difference) -> OneLineTable:
    """Return a table of differences that are neither steady nor undefined. A cell starts with its changed inputs."""
    styles = {"regressed": "bold red", "improved": "green"}
    rows: list[one_line_table.Row] = []
    for pair in difference.cells:
        relevant = [change for change in pair.changes if change.verdict not in ("steady", "undefined")]
        if relevant or pair.changed:
            changed = f": changed: {', '.join(pair.changed)}" if pair.changed else ""
            rows.append(one_line_table.Row(heading=Text(f"{cell_name(pair.cell)}{changed}")))
        for change in sorted(relevant, key=lambda change: (*styles, "changed", "within_noise").index(change.verdict)):
            what = what_changed(change)
            numbers = (with_unit(value, change.unit) for value in (change.before, change.after, change.limit))
            texts = map(Text, (f"  {what}", *numbers))
            verdict = Text(change.verdict.replace("_", " "), styles.get(change.verdict, ""))
            rows.append(one_line_table.Row(values=dict(zip(_COLUMNS, (*texts, verdict), strict=True))))
    for run, cells in ((difference.run_a, difference.only_in_a), (difference.run_b, difference.only_in_b)):
        rows += [one_line_table.Row(heading=Text(f"{cell_name(cell)}: only in {run}")) for cell in cells]
    return OneLineTable(columns=_COLUMNS, rows=rows, dropped_first=("limit",))


def what_changed(change: Change) -> str:
    """Return what a change is about, on one line."""
    return printable(" ".join(filter(None, (change.operator, change.step, change.what))))


def cell_name(cell: Mapping[str, str | None]) -> str:
    """Return the names of a cell, on one line."""
    where, others = cell["farm"] or cell["device"], other_toolchain(cell).values()
    names = (cell["model"], cell["scheme"], cell["soc"], *others, cell["backend"], where)
    return printable(" · ".join(filter(None, names)))
