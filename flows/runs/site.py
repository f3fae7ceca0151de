"""The history of all runs as pages: the night at a glance, a page per cell with its numbers over the nights, and the
diffs of regressions. `qnnsweep report --site` writes them into a folder, and `qnnsweep ui` serves the same pages.

The addresses are `index.html`, `cells/<cell>.html` and `diff/<good run>..<bad run>.html`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.flows.runs.changes import changes
from qnnsweep.flows.runs.diff import diff
from qnnsweep.flows.runs.diff_page import render
from qnnsweep.flows.runs.history import CELLS, Key, key, value
from qnnsweep.flows.runs.regressions import what_is_worse, with_unit
from qnnsweep.flows.runs.results import read_facts, report_name
from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.numerics.series import SERIES
from qnnsweep.tasks.numerics.trend import BAD
from qnnsweep.tasks.records.tables import CELL_COLUMNS, Row
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.report.format import NULL, lowest, symbol, words
from qnnsweep.tasks.report.templates import html
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store

MOST_RUNS = 100
_COLUMNS = (*CELLS, "final_difference", "equal_elements", "diagnosis", "reason", "error")
_TRENDS = (
    *(*CELL_COLUMNS, "farm", "series", "operator", "step", "unit"),
    *("value", "level", "verdict", "first_bad_run", "changed"),
)
_HEADS = {
    "final_snr_db": "lowest SNR dB",
    "top1_agreement": "top-1",
    "latency_p50_ms": "latency ms",
    "pte_bytes": "pte bytes",
}
"""The series in the table of nights."""
_ALWAYS = ("final_snr_db", "pte_bytes")
"""The series that have a chart even if they never changed."""
_WORSE = "▼"  # in place of the mark of a cell that passed, but is worse than before
_MOST_REGRESSIONS, _MOST_CHANGES, _MOST_DIFFS = 4, 3, 20
_LEFT, _WIDTH, _TOP, _BOTTOM = 60, 335, 16, 74
"""Of a chart: where its line begins, and how wide it is; where it is highest and lowest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worse:
    """Cells of one model and scheme that are worse on a night in the same way, as a page shows them."""

    cells: Mapping[str, str]
    """The names of the cells, the first one complete and the others without what they share, with their pages."""
    what: str
    since: str
    diff: str | None
    changed: Sequence[str]
    is_new: bool


@dataclass
class Site:
    """The pages of a store. `with_reports`: whether the reports of the runs can be reached from the pages."""

    store: Store
    with_reports: bool = False
    problems: set[str] = field(default_factory=set[str])

    def page(self, name: str) -> str | None:
        """Return a page by its address below the site, or None if there is no such page."""
        if name == "index.html":
            return self._index()
        if (found := self._slugs.get(name)) is not None:
            return self._cell(found)
        return self._diff(*self._diffs[name]) if name in self._diffs else None

    def names(self) -> list[str]:
        return ["index.html", *self._slugs, *self._diffs]

    def write(self, folder: Path) -> None:
        """Write all pages into a folder. Raises RequestError if it cannot be written."""
        try:
            for name in self.names():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(self.page(name) or "", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"--site={folder}: {error.strerror}; choose another folder") from error

    @cached_property
    def _runs(self) -> list[str]:
        return tables.runs(self.store)[-MOST_RUNS:]

    @cached_property
    def _cells(self) -> Mapping[str, Sequence[Row]]:
        """The rows of `cells`, by run."""
        return _by_run(select(self.store, "cells", _COLUMNS, runs=set(self._runs), problems=self.problems))

    @cached_property
    def _trends(self) -> Mapping[str, Sequence[Row]]:
        """The rows of `trends` that are worse, by run."""
        where = {"verdict": BAD}
        return _by_run(select(self.store, "trends", _TRENDS, where=where, runs=set(self._runs), problems=self.problems))

    @cached_property
    def _nights(self) -> Mapping[Key, list[Row]]:
        """The nights of every cell, oldest first. Only a run of the command `run` is a night."""
        nights: dict[Key, list[Row]] = defaultdict(list)
        for rows in self._cells.values():
            for row in rows:
                if row["verb"] in (None, "run"):
                    nights[key(row)].append(row)
        return nights

    @cached_property
    def _changed(self) -> Mapping[tuple[str, Key], Sequence[str]]:
        """What changed on a night of a cell since its night before, by run and cell. Equal nights are left out."""
        pairs = [(a, b) for nights in self._nights.values() for a, b in pairwise(nights)]
        differing = [pair for pair in pairs if changes(*pair)]
        runs = {row["run_id"] for pair in differing for row in pair}
        columns = (*CELL_COLUMNS, "farm", "settings")
        found = select(self.store, "cells", columns, runs=runs, problems=self.problems) if runs else []
        settings = {(row["run_id"], key(row)): row["settings"] for row in found}
        with_settings = ([{**row, "settings": settings.get((row["run_id"], key(row)))} for row in p] for p in differing)
        return {
            (b["run_id"], key(b)): [word.replace(" -> ", " → ") for word in changes(a, b)] for a, b in with_settings
        }

    @cached_property
    def _slugs(self) -> Mapping[str, Key]:
        return {_slug(cell): cell for cell in self._nights}

    @cached_property
    def _diffs(self) -> Mapping[str, tuple[str, str]]:
        """The newest regressions of which both nights are stored, by the address of their diff: the two runs."""
        diffs = {
            _diff_name(*pair): pair
            for run in reversed(self._runs)
            for row in self._trends.get(run, ())
            if row["verdict"] == "regressed" and (pair := self._pair(row)) is not None
        }
        return dict(list(diffs.items())[:_MOST_DIFFS])

    def _pair(self, row: Row) -> tuple[str, str] | None:
        """Return the last night of the cell before the first bad one, and this one."""
        runs = [night["run_id"] for night in self._nights.get(key(row), ())]
        bad = row["first_bad_run"]
        return (runs[runs.index(bad) - 1], bad) if bad in runs[1:] else None

    def _worse(self, run: str) -> list[Worse]:
        """Return the cells that are worse in a run, the new regressions first. Cells that say the same are together."""
        counts = count(self._cells.get(run, ()), self._trends.get(run, ()))
        new, old = counts.regressed.values(), counts.still_bad.values()
        groups: dict[tuple[Any, ...], list[Worse]] = defaultdict(list)
        for rows, is_new in [*((rows, True) for rows in new), *((rows, False) for rows in old)]:
            item = self._in_words(rows, is_new)
            groups[*key(rows[0])[:2], item.what, item.since, item.diff, item.changed, is_new].append(item)
        return [_together(items, len(f"{group[0]} {group[1]} ")) for group, items in groups.items()]

    def _in_words(self, rows: Sequence[Row], is_new: bool) -> Worse:
        whole = [row for row in rows if not (row["operator"] or row["step"])] or rows
        new = [row for row in whole if row["verdict"] == "regressed"] or whole
        first = min(new, key=lambda row: list(SERIES).index(row["series"]) if row["series"] in SERIES else len(SERIES))
        was, now = (with_unit(first[name], first["unit"]) for name in ("level", "value"))
        more = len({(row["series"], row["operator"], row["step"]) for row in rows}) - 1
        pair = self._pair(first)
        name = _diff_name(*pair) if pair else ""
        return Worse(
            cells={_name(key(first)): _slug(key(first))},
            what=f"{what_is_worse(first)} {was} → {now}" + (f", and {more} more" if more else ""),
            since=_time(first["first_bad_run"]),
            diff=name if name in self._diffs else None,
            changed=tuple(word.replace(" -> ", " → ") for word in first["changed"]),
            is_new=is_new,
        )

    def _report(self, run: str) -> str | None:
        return report_name(run) if self.with_reports else None

    def _index(self) -> str:
        runs = [run for run in reversed(self._runs) if run in self._cells]
        shown = [self._night(run) for run in runs]
        nights = [run for run in runs if self._cells[run][0]["verb"] in (None, "run")]
        shown.sort(key=lambda night: night["run_id"] != (nights or [None])[0])  # the last night is the first
        last = self._cells[nights[0]] if nights else ()
        counts = count(last, self._trends.get(nights[0], ())) if nights else None
        return html(
            "site_index",
            styles=("site.css",),
            nights=shown,
            headline="" if counts is None else (counts.regressions_in_words() or ", ".join(counts.in_words())),
            grid=self._grid(last),
        )

    def _night(self, run: str) -> dict[str, Any]:
        cells, trends = self._cells[run], self._trends.get(run, ())
        counts, worse = count(cells, trends), self._worse(run)
        new = [item for item in worse if item.is_new]
        frequent = Counter(word for row in cells for word in self._changed.get((run, key(row)), ()))
        most = frequent.most_common(_MOST_CHANGES)
        changed = [f"{word} ({number} cells)" if number > 1 else word for word, number in most]
        seconds = 0.0
        with suppress(EvidenceError):
            seconds = read_facts(run, self.store).seconds
        return {
            "run_id": run,
            "time": _time(run),
            "seconds": seconds,
            "report": self._report(run),
            "verb": cells[0]["verb"] or "run",
            "outcome": ", ".join(counts.in_words()),
            "passed": not counts.not_passed and not counts.regressed,
            "changed": changed + ([f"{len(frequent) - _MOST_CHANGES} more"] if len(frequent) > _MOST_CHANGES else []),
            "worse": worse,
            "new": new[:_MOST_REGRESSIONS],
            "more": max(0, len(new) - _MOST_REGRESSIONS),
        }

    def _grid(self, cells: Sequence[Row]) -> list[dict[str, Any]]:
        """Return a row per model and scheme, with a box per group of SoCs whose results are equal."""
        found = self._worse(cells[0]["run_id"]) if cells else ()
        worse = {page: item for item in found for page in item.cells.values()}
        grid: dict[tuple[str, str], dict[tuple[str, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in cells:
            item = worse.get(_slug(key(row)))
            word = "" if item is None else "regressed" if item.is_new else "still worse"
            tone = "bad" if item and item.is_new else "old" if item else _tone(row["outcome"])
            shown = lowest(row["final_difference"], row["final_snr_db"], row["equal_elements"])
            if row["outcome"] not in ("passed", "impossible"):
                word = ", ".join(filter(None, (words(row["outcome"]), word)))
            where = _name(key(row)).removeprefix(f"{row['model']} {row['scheme']} {row['soc']}").strip()
            sign = _WORSE if item and row["outcome"] == "passed" else symbol(row["outcome"])
            box = (tone, sign, shown, word, where)
            grid[row["model"] or NULL, row["scheme"] or NULL][box].append(row)
        return [
            {
                "model": model,
                "scheme": scheme,
                "boxes": [
                    {
                        "tone": tone,
                        "symbol": sign,
                        "value": shown,
                        "word": word,
                        "socs": ", ".join(str(row["soc"]) for row in rows) + (f" {where}" if where else ""),
                        "page": _slug(key(rows[0])) if rows[0]["verb"] in (None, "run") else "#runs",
                    }
                    for (tone, sign, shown, word, where), rows in boxes.items()
                ],
            }
            for (model, scheme), boxes in grid.items()
        ]

    def _cell(self, cell: Key) -> str:
        nights = self._nights[cell]
        runs = [row["run_id"] for row in nights]
        series = {name: [value(row, name) for row in nights] for name in SERIES}
        drawn = [
            name
            for name, values in series.items()
            if len(set(values)) > 1 or (name in _ALWAYS and values[-1] is not None)
        ]
        constant = [
            f"{name} {with_unit(values[0], SERIES[name].unit)}"
            for name, values in series.items()
            if name not in drawn and values[0] is not None
        ]
        marks = [index for index, run in enumerate(runs) if (run, cell) in self._changed]
        falls: dict[str, set[int]] = defaultdict(set)
        for run in runs:
            for row in self._trends.get(run, ()):
                if key(row) == cell and row["verdict"] == "regressed" and row["first_bad_run"] in runs:
                    falls[row["series"]].add(runs.index(row["first_bad_run"]))
        times = (_time(runs[0])[:10], _time(runs[-1])[:10])
        worse = [item for item in self._worse(runs[-1]) if _slug(cell) in item.cells.values()]
        return html(
            "site_cell",
            styles=("site.css",),
            name=_name(cell),
            worse=worse,
            diagnosis=nights[-1]["diagnosis"] or nights[-1]["error"] or nights[-1]["reason"],
            charts=[_chart(name, series[name], marks, sorted(falls[name]), times) for name in drawn],
            constant=constant,
            heads=[*_HEADS.values()],
            nights=[self._line(row, cell) for row in reversed(nights)],
        )

    def _line(self, row: Row, cell: Key) -> dict[str, Any]:
        bad = [item["series"] for item in self._trends.get(row["run_id"], ()) if key(item) == cell and _is_new(item)]
        notes = [*self._changed.get((row["run_id"], cell), ()), *(f"{name} regressed" for name in dict.fromkeys(bad))]
        return {
            "time": _time(row["run_id"]),
            "report": self._report(row["run_id"]),
            "outcome": words(row["outcome"]),
            "tone": "bad" if bad else _tone(row["outcome"]),
            "numbers": [with_unit(value(row, name), "") for name in _HEADS],
            "note": ", ".join(notes),
        }

    def _diff(self, good: str, bad: str) -> str:
        """Return the page of the differences of two nights, of the cells that regressed."""
        found = diff(self.store, good, bad)
        links = {run: f"../{report_name(run)}" if self.with_reports else "../index.html" for run in (good, bad)}
        return render(found.of_regressed(), links, brief=True)


def _together(items: Sequence[Worse], shared: int) -> Worse:
    """Return cells that say the same as one. `shared`: the length of the beginning that their names share."""
    first, *others = (pair for item in items for pair in item.cells.items())
    return replace(items[0], cells=dict([first, *((name[shared:], page) for name, page in others)]))


def _by_run(rows: Sequence[Row]) -> dict[str, list[Row]]:
    by_run: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_run[row["run_id"]].append(row)
    return by_run


def _is_new(row: Row) -> bool:
    return row["verdict"] == "regressed" and not (row["operator"] or row["step"])


def _name(cell: Key) -> str:
    """Return the names of a cell, without what is the default."""
    usual = {DEFAULT_TOOLCHAIN, "qnn", "local", None}
    return " ".join([*(str(name) for name in cell[:3]), *(name for name in cell[3:] if name and name not in usual)])


def _slug(cell: Key) -> str:
    """Return the address of the page of a cell."""
    plain = "~".join(re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII) for name in _name(cell).split(" "))
    is_same = plain.replace("~", " ") == _name(cell)
    return f"cells/{plain}.html" if is_same else f"cells/{plain}~{digest(list(cell))[:8]}.html"


def _diff_name(good: str, bad: str) -> str:
    return f"diff/{good}..{bad}.html"


def _time(run: str | None) -> str:
    """Return when a run started, by its id."""
    with suppress(ValueError):
        return f"{datetime.strptime((run or '').partition('-')[0], '%Y%m%dT%H%M%SZ'):%Y-%m-%d %H:%M}"
    return run or NULL


def _tone(outcome: str) -> str:
    return {"passed": "good", "impossible": "none"}.get(outcome, "bad")


def _chart(
    name: str, values: Sequence[float | None], marks: Sequence[int], falls: Sequence[int], times: tuple[str, str]
) -> dict[str, Any]:
    """Return what the page draws of a series. `marks`, `falls`: positions of the nights with a line of their own."""
    known = [number for number in values if number is not None]
    low, high = min(known), max(known)

    def x(index: int) -> float:
        return round(_LEFT + _WIDTH * (index / (len(values) - 1) if len(values) > 1 else 0.5), 1)

    def y(number: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * ((number - low) / (high - low) if high > low else 0.5), 1)

    path = "".join(_steps([None if number is None else (x(i), y(number)) for i, number in enumerate(values)]))
    last = values[-1]
    return {
        "name": name,
        "low": with_unit(low, ""),
        "high": with_unit(high, "") if high > low else "",
        "last": with_unit(last, SERIES[name].unit),
        "begin": times[0],
        "end": times[1],
        "marks": [x(index) for index in marks if index not in falls],
        "falls": [x(index) for index in falls],
        "path": path,
        "dot": None if last is None else (x(len(values) - 1), y(last)),
    }


def _steps(points: Sequence[tuple[float, float] | None]) -> Iterator[str]:
    """Yield the path through the points. A night without a value interrupts it."""
    is_down = False
    for point in points:
        if point is not None:
            yield f"{'L' if is_down else 'M'}{point[0]:g} {point[1]:g}"
        is_down = point is not None
