"""The table `trends` of a run: cells compared with earlier nights, and what changed when a cell got worse."""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Any, Literal

from qnnsweep.conf.names import AXES
from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.changes import DIGESTS, changes
from qnnsweep.flows.server.log import warn
from qnnsweep.tasks.numerics.change import discovered
from qnnsweep.tasks.numerics.series import COMPILED_SERIES, OPERATOR_SERIES, SERIES, STEP_SERIES, VALUE_SERIES, Series
from qnnsweep.tasks.numerics.trend import BAD, Assessment, Night, assess, history_nights, probability
from qnnsweep.tasks.records.tables import CELL_COLUMNS, VERSION_COLUMNS
from qnnsweep.tasks.results.step_sentences import step_in_words
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

Row = Mapping[str, Any]
Key = tuple[str | None, ...]
Gaps = dict[tuple[Key, str], Row]
"""The series of one night's operators or steps, by the cell's key and the name of the operator or step. The series of
an operator are those of its worst sample."""

TARGET = AXES[:-1]
"""The columns that have the same values for a cell and for the same cell on another device."""
_DERIVED = {"passed", "coverage"}
CELLS = (
    *CELL_COLUMNS,
    *("farm", "verb", "outcome", "device_id", "timed_on", "operators_total", "operators_compared"),
    *(name for name in SERIES if name not in _DERIVED),
    *VERSION_COLUMNS,
    *DIGESTS,
)
"""The columns of `cells` that are read for a night."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A kind of parts of a cell that have series of their own: its operators, or its steps."""

    table: Literal["operators", "steps"]
    column: Literal["operator", "step"]
    """The column of the table `trends` with the name of the part."""
    series: Mapping[str, Series]
    columns: Sequence[str]
    """The columns of `table` on which the name and the series of a part depend."""
    name: Callable[[Row], str | None]
    """Return the name of the part that a row is about; None if the row is not compared from night to night."""
    where: Callable[[Collection[str]], Mapping[str, Collection[str]]] = lambda _: {}
    """Return a filter that keeps at least the rows of the parts with these names. See `select`."""


def step_name(row: Row) -> str:
    """Return the name in words of the step that a row of `steps` is about."""
    return step_in_words(row["step"], row["method"], row["sample_name"])


OPERATORS = Parts(
    table="operators",
    column="operator",
    series=OPERATOR_SERIES,
    columns=("operator", "reference", *OPERATOR_SERIES),
    name=lambda row: row["operator"] if row["reference"] == "edge" else None,
    where=lambda operators: {"reference": {"edge"}, "operator": operators},
)
STEPS = Parts(
    table="steps",
    column="step",
    series=STEP_SERIES,
    columns=(
        *("step", "method", "sample_name", "token", "token_reference", "origin"),
        *(name for name in STEP_SERIES if name != "same_token"),
    ),
    name=step_name,
)


_Settings = Callable[[str], Mapping[Key, Sequence[str]]]
"""Returns the column `settings` of a run's cells."""
_Read = Callable[..., Sequence[Row]]
"""Reads a table of earlier nights; see `select`. A file that cannot be read leaves its night out, with a problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """The past of a run's cells: earlier nights (oldest first), these nights' runs, and bad or improved verdicts."""

    nights: Mapping[Key, list[Row]]
    runs: set[str]
    verdicts: Mapping[tuple[str, Key, str, str | None], tuple[str, str | None]]


def trends(
    store: Store,
    run_id: str,
    cells: Sequence[Row],
    operators: Sequence[Row],
    config: TrendConfig,
    steps: Sequence[Row] = (),
) -> list[dict[str, Any]]:
    """Return the rows of `trends` for a run's rows of `cells`, `operators` and `steps`.

    There is one row per cell and series. There is one row per series of an operator or of a step that got worse, if its
    cell is worse too. Runs that started after this run are ignored. A night that cannot be read is left out and logged.
    """
    problems: set[str] = set()
    read = partial(select, store, problems=problems)

    @cache
    def settings(run: str) -> Mapping[Key, Sequence[str]]:
        return {key(row): row["settings"] for row in read("cells", (*CELL_COLUMNS, "farm", "settings"), runs={run})}

    past = _past(read, [run for run in tables.runs(store) if run < run_id], cells, config)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        nights = [*past.nights.get(key(cell), ()), cell]
        for name, series in SERIES.items():
            history = _history(nights, [value(night, name) for night in nights], name, None, past)
            assessment = Assessment(verdict="undefined")
            if is_judged(name, cell):
                assessment = assess(history[:-1], history[-1], series, getattr(config.floors, name), config)
            listed, changed = history[-history_nights(config) :], _changed(nights, assessment, settings)
            rows.append(trend_row(cell, name, series.unit, listed, assessment, changed))
    since = _worse_cells(rows, cells)
    for parts, of_parts in ((OPERATORS, operators), (STEPS, steps)):
        rows += _worse_parts(parts, read, past, cells, of_parts, since, config, settings)
    for problem in sorted(problems):
        warn(f"trends: a night is left out: {problem}")
    return rows


def key(row: Row) -> Key:
    """Return the identity of a cell across nights. On a farm, the device may change, so the device is left out."""
    return *target(row), row["farm"], None if row["farm"] else row["device"]


target: Callable[[Row], Key] = itemgetter(*TARGET)
"""Return a row's values of the columns `TARGET`."""


def value(cell: Row, series: str) -> float | None:
    """Return a cell's value of one of the `SERIES`, or None if the value is not defined."""
    if series == "passed":
        return {"passed": 1.0, "out_of_tolerance": 0.0, "failed": 0.0}.get(cell["outcome"])
    if series == "coverage":
        compared = cell["outcome"] in ("passed", "out_of_tolerance") and cell["operators_total"]
        return (cell["operators_compared"] or 0) / cell["operators_total"] if compared else None
    return None if cell[series] is None else float(cell[series])


def is_judged(series: str, *cells: Row) -> bool:
    """Return whether a change of the series can be a regression. The latency of a simulator is only shown."""
    return series != "latency_p50_ms" or all(cell["timed_on"] != "simulator" for cell in cells)


def worst_gaps(parts: Parts, rows: Iterable[Row], keys: Mapping[Key, Key]) -> Gaps:
    """Return the worst values of the series of every part. `keys`: maps values of `CELL_COLUMNS` to the cell's key."""
    worst: dict[tuple[Key, str], dict[str, float | None]] = {}
    for row in rows:
        if (cell := keys.get(names(row))) and (part := parts.name(row)) is not None:
            gaps = worst.setdefault((cell, part), dict.fromkeys(parts.series))
            for name, gap in gaps.items():
                gaps[name] = min((other for other in (gap, _part_value(row, name)) if other is not None), default=None)
    return dict(worst)


def _part_value(row: Row, series: str) -> float | None:
    if series != "same_token":
        return row[series]
    # After the first token that differs, the two sides read different texts.
    if row["token"] is None or row["origin"] == "diverged":
        return None
    return float(row["token"] == row["token_reference"])


names: Callable[[Row], Key] = itemgetter(*CELL_COLUMNS)
"""Return a row's values of `CELL_COLUMNS`."""


def _past(read: _Read, runs: list[str], cells: Sequence[Row], config: TrendConfig) -> Past:
    enough = history_nights(config)
    past: dict[Key, list[Row]] = defaultdict(list)
    missing = {key(cell) for cell in cells}
    while runs and missing:
        runs, chunk = runs[:-enough], set(runs[-enough:])
        where = {name: {str(cell[index]) for cell in missing} for index, name in enumerate(TARGET)}
        nights: dict[Key, list[Row]] = defaultdict(list)
        for row in read("cells", CELLS, where=where, runs=chunk):
            # A recompare is not a night of its own: it repeats a night that is already in the list.
            if row["verb"] in (None, "run") and key(row) in missing:
                nights[key(row)].append(row)
        for cell, rows in nights.items():
            past[cell] = [*rows, *past[cell]][-enough:]
        missing = {cell for cell in missing if len(past[cell]) < enough}
    columns = (*CELL_COLUMNS, "farm", "series", "operator", "step", "verdict", "first_bad_run")
    past = {key(cell): _on_this_device(past[key(cell)], cell) for cell in cells}
    past_runs = {row["run_id"] for rows in past.values() for row in rows}
    unsteady = read("trends", columns, where={"verdict": {*BAD, "improved"}}, runs=past_runs)
    verdicts = {
        (row["run_id"], key(row), row["series"], row["operator"] or row["step"]): (row["verdict"], row["first_bad_run"])
        for row in unsteady
    }
    return Past(nights=past, runs=past_runs, verdicts=verdicts)


def _on_this_device(nights: list[Row], tonight: Row) -> list[Row]:
    """Return the nights since the last one on another device of the same name; on a farm, all nights."""
    known = tonight["device_id"]
    if known is None or tonight["farm"]:
        return nights
    others = [index for index, night in enumerate(nights) if night["device_id"] not in (None, known)]
    return nights[others[-1] + 1 :] if others else nights


def _history(
    nights: Sequence[Row], values: Sequence[float | None], name: str, part: str | None, past: Past
) -> list[Night]:
    """Return the nights of a series, tonight last."""
    cell = key(nights[-1])
    history: list[Night] = []
    for row, number in zip(nights, values, strict=True):
        verdict, first_bad = past.verdicts.get((row["run_id"], cell, name, part), (None, None))
        night = Night(
            run=row["run_id"],
            value=number,
            passed=row["outcome"] == "passed",
            verdict=verdict,
            first_bad_run=first_bad,
            inputs=_inputs(row, name),
        )
        history.append(night)
    return history


def _inputs(night: Row, series: str) -> Hashable:
    """Return what a value depends on that is computed without noise: by the compiler or the simulator; else None."""
    by_simulator = night["timed_on"] in ("simulator", None) and series != "latency_p50_ms"
    if series not in COMPILED_SERIES and not by_simulator:
        return None
    return tuple(night[column] for column in (*VERSION_COLUMNS, *DIGESTS, "device"))


def trend_row(
    cell: Row,
    series: str,
    unit: str,
    history: Sequence[Night],
    assessment: Assessment,
    changed: Sequence[str],
    **part: str,
) -> dict[str, Any]:
    """Return a row of `trends`. `history`: its nights, tonight last. `part`: the operator or step that it is about."""
    assessed = asdict(assessment)
    del assessed["last_good_run"]
    return {
        **{column: cell[column] for column in CELL_COLUMNS},
        "farm": cell.get("farm"),
        "series": series,
        "operator": None,
        "step": None,
        **part,
        "unit": unit,
        "value": history[-1].value,
        **assessed,
        "changed": [*changed],
        "runs": [night.run for night in history],
        "values": [night.value for night in history],
    }


def _changed(nights: Sequence[Row], assessment: Assessment, settings: _Settings) -> list[str]:
    by_run = {row["run_id"]: row for row in nights}
    good, bad = by_run.get(assessment.last_good_run or ""), by_run.get(assessment.first_bad_run or "")
    if good is None or bad is None:
        return []
    return changes(*({"settings": settings(row["run_id"]).get(key(row)), **row} for row in (good, bad)))


def _worse_cells(rows: Iterable[Row], cells: Iterable[Row]) -> dict[Key, str]:
    """Map the key of each cell that computes worse values than before to the run since which it does.

    `rows`: the rows of `trends` for the cells' own series.
    """
    keys = {names(cell): key(cell) for cell in cells}
    since: dict[Key, str] = {}
    for row in rows:
        if row["verdict"] in BAD and row["series"] in VALUE_SERIES:
            cell = keys[names(row)]
            since[cell] = min(since.get(cell, row["first_bad_run"]), row["first_bad_run"])
    return since


def _worse_parts(
    parts: Parts,
    read: _Read,
    past: Past,
    cells: Sequence[Row],
    rows: Sequence[Row],
    since: Mapping[Key, str],
    config: TrendConfig,
    settings: _Settings,
) -> Iterator[dict[str, Any]]:
    """Yield one row per operator or step and series whose verdict is bad, in the order of the run's `rows`.

    `since`: the cells of which parts are reported, and the first run on which the cell was worse. The baseline of a
    part ends before this run.
    """
    tonight = worst_gaps(parts, rows, {names(cell): key(cell) for cell in cells if key(cell) in since})
    candidates = _candidates(parts, read, past, tonight, since, config)
    before = _gaps(parts, read, past, past.runs, {(cell, part) for cell, part, _ in candidates})
    by_key = {key(cell): cell for cell in cells}
    histories: dict[tuple[Key, str, str], list[Night]] = {}
    for cell, part, name in candidates:
        nights = [*past.nights.get(cell, ()), by_key[cell]]
        values = [before.get(row["run_id"], {}).get((cell, part), {}).get(name) for row in nights[:-1]]
        histories[cell, part, name] = _history(nights, [*values, tonight[cell, part][name]], name, part, past)

    def compared(candidate: tuple[Key, str, str]) -> tuple[list[Night], Night, Series, float, TrendConfig]:
        """Return what the verdict on the series of a part depends on."""
        cell, _, name = candidate
        *earlier, now = histories[candidate]
        nights = [night for night in earlier if night.run < since[cell] or night.verdict in BAD]
        return nights, now, parts.series[name], getattr(config.floors, name), config

    chances = {candidate: probability(*compared(candidate)) for candidate in candidates}
    # A series that is no candidate is a test too: its probability is 1.
    tests = sum(gap is not None for gaps in tonight.values() for gap in gaps.values())
    largest = discovered([*chances.values(), *[1.0] * (tests - len(chances))], config.false_share)
    for candidate in candidates:
        cell, part, name = candidate
        assessment = assess(*compared(candidate), worse=chances[candidate] <= largest)
        if assessment.verdict in BAD:
            nights = [*past.nights.get(cell, ()), by_key[cell]]
            listed, changed = histories[candidate][-history_nights(config) :], _changed(nights, assessment, settings)
            unit, of_part = parts.series[name].unit, {parts.column: part}
            yield trend_row(nights[-1], name, unit, listed, assessment, changed, **of_part)


def _candidates(
    parts: Parts, read: _Read, past: Past, tonight: Gaps, since: Mapping[Key, str], config: TrendConfig
) -> list[tuple[Key, str, str]]:
    """Return the series of parts that may be worse than their baseline. All nights are read for these series only.

    A series is returned in two cases: its value is worse than on the oldest or the latest good night before the cell
    became worse, by more than the floor; or the series was bad on one of the cell's last three nights.
    """
    good = {
        cell: [row["run_id"] for row in past.nights.get(cell, ()) if row["outcome"] == "passed" and row["run_id"] < run]
        for cell, run in since.items()
    }
    ends = {cell: {runs[0], runs[-1]} for cell, runs in good.items() if runs}
    reference = _gaps(parts, read, past, {run for runs in ends.values() for run in runs}, set(tonight))
    candidates: list[tuple[Key, str, str]] = []
    for (cell, part), gaps in tonight.items():
        recent = [row["run_id"] for row in past.nights.get(cell, ())[-3:]]
        for name in parts.series:
            now, floor = gaps[name], getattr(config.floors, name)
            then = [reference.get(run, {}).get((cell, part), {}).get(name) for run in ends.get(cell, ())]
            worse = now is not None and any(before is not None and before - now > floor for before in then)
            if worse or any((run, cell, name, part) in past.verdicts for run in recent):
                candidates.append((cell, part, name))
    return candidates


def _gaps(
    parts: Parts, read: _Read, past: Past, runs: Collection[str], wanted: Collection[tuple[Key, str]]
) -> dict[str, Gaps]:
    """Map every earlier run in `runs` to the series of the parts in `wanted`."""
    if not runs or not wanted:
        return {}
    keys = {names(row): cell for cell, rows in past.nights.items() for row in rows if row["run_id"] in runs}
    where = {**parts.where({part for _, part in wanted}), "model": {str(cell[0]) for cell, _ in wanted}}
    columns = (*CELL_COLUMNS, *parts.columns)
    by_run: dict[str, list[Row]] = defaultdict(list)
    for row in read(parts.table, columns, where=where, runs=runs):
        by_run[row["run_id"]].append(row)
    return {run: worst_gaps(parts, rows, keys) for run, rows in by_run.items()}
