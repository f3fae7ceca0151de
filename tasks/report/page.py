"""The report of a run, from its rows: a self-contained HTML page, and summaries for Prefect.

The functions read no files but the page's template, style and scripts beside this module. They round numbers for
display; the tables have the numbers as measured.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.records.tables import CELL_COLUMNS, Row
from qnnsweep.tasks.report import data, figures
from qnnsweep.tasks.report import format as display
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.report.folding import folds
from qnnsweep.tasks.report.formats.cells import other_toolchain
from qnnsweep.tasks.report.glossary import GLOSSARY
from qnnsweep.tasks.report.ladder import ladders, worst_output
from qnnsweep.tasks.report.steps import steps_of_page
from qnnsweep.tasks.report.templates import html, markdown_text
from qnnsweep.tasks.storage.environment import without_home

_CELL = CELL_COLUMNS[1:]
"""The columns that identify a cell within its run."""
NUMBERS = ("lowest SNR dB", "top-1 %", "pte KiB", "operators", "delegated / CPU", "lower s")
_TOP_EVENTS = 24  # per unit and cell: cycles and µs have no common order
_ERROR_CHARACTERS = 4_000
_TOP_SHARES, _ALL_SHARES = 40, 10_000  # per final output, and of all cells
_TOP_DETAILS, _ALL_DETAILS = 16, 600  # per cell, and of all cells
STYLES = ("page.css", "detail.css", "steps.css")
_LOG_CHARACTERS, _ALL_LOGS_CHARACTERS = 64_000, 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CellView:
    """A cell on the page. The values of its row are its items, which a template reads like fields."""

    row: Row
    """The row of the table `cells`."""
    number: int
    """The position of the cell in the plan, which is its name on the page."""
    permalink: str
    ladders: Mapping[str, Sequence[Row]]
    steps: Row | None
    worst_output: int | None
    worst_module: str | None
    latency: Row | None
    regressions: Sequence[figures.Row]
    without_budget: str | None
    counts: Mapping[str, int]
    """The number of the cell's rows, by table."""
    shown: Mapping[str, int]
    """How many of these rows are in the page."""
    log_text: str | None
    """None if the log is missing."""
    log_is_cut: bool

    def __getitem__(self, column: str) -> Any:
        return self.row[column]


def render(run: RunFacts, tables: Mapping[str, Sequence[Row]], logs: Mapping[str, str]) -> str:
    """Return the report as one HTML document that loads no other file.

    `tables`: the run's rows by table name; every table except `cells` may be absent.
    `logs`: the logs' texts by sha256. The page has only the name of a missing log, and only the end of a long log, see
    `log_characters`.
    """
    run, logs = _handed_on(run), without_home(logs)
    rows = display.with_places(tables["cells"], run)
    evidence = {name: _by_cell(tables.get(name, ())) for name in data.PAGE_TABLES}
    detailed = len(tables.get("operators", ())) <= data.DETAILED_OPERATORS
    scores = _by_cell(tables.get("scores", ()))
    columns = {name: data.page_columns(name, detailed=detailed) for name in data.PAGE_TABLES}
    strings, of_cells = data.StringTable(), list[dict[str, Any]]()
    share = log_characters(sum(row["log"] in logs for row in rows))
    column_names = ["soc", *varying(rows)]
    cells: list[CellView] = []
    for row in rows:
        rows_of: dict[str, Sequence[figures.Row]] = {name: of.get(_key(row), []) for name, of in evidence.items()}
        rows_of["work"] = _work_of(row, tables.get("work", ()))
        rows_of["trends"] = figures.trends_of_page(rows_of["trends"])
        shown = rows_of | _shown(row, rows_of, len(rows))
        log, log_is_cut = _tail(display.printable(logs[row["log"]]), share) if row["log"] in logs else (None, False)
        cell = CellView(
            row=row,
            number=len(cells),
            permalink="/".join(named(row, ["model", "scheme", *column_names])),
            ladders=ladders(rows_of["outputs"]),
            steps=steps_of_page(rows_of["steps"], scores.get(_key(row), ())),
            worst_output=worst_output(rows_of["outputs"]),
            worst_module=figures.module_of(row["worst_operator"], rows_of["operators"]),
            latency=figures.latency(rows_of["profile"]),
            regressions=figures.regressions(rows_of["trends"]),
            without_budget=None if rows_of["budget"] else figures.without_budget(row, rows_of["operators"]),
            counts={name: len(listed) for name, listed in rows_of.items()},
            shown={name: len(listed) for name, listed in shown.items()},
            log_text=log,
            log_is_cut=log_is_cut,
        )
        cells.append(cell)
        of_cells.append(_embedded(shown, columns, cell, strings))
    regressed = [(cell, cell.regressions) for cell in cells if cell.regressions]
    folded = folds([(named(row, column_names), row) for row in rows], [cell.row for cell, _ in regressed])
    counts = count(rows, tables.get("trends", ()))
    return html(
        "page",
        styles=STYLES,
        GLOSSARY=GLOSSARY,
        MEANINGS=data.MEANINGS,
        run=run,
        command=shlex.join(run.command),
        compared_run=_compared_run(run),
        artifacts=_artifacts(run),
        cells=cells,
        folder_of=folder_of,
        files=_files(run),
        other_toolchain=lambda cell: other_toolchain(cell).get("toolchain"),
        head=_head,
        counts=counts,
        outcomes={**dict.fromkeys(display.OUTCOMES, 0), **counts.outcomes},
        matrix=_matrix(cells, column_names),
        socs={column: [other[0] for other in folded if folded[other] == column != other] for column in folded},
        is_folded=lambda column: folded[column] != column,
        column_of=lambda cell: named(cell.row, column_names),
        troubles=_troubles(cells),
        detailed=detailed,
        has_trends=bool(tables.get("trends")),
        causes=figures.causes(regressed),
        measures=data.embedded_json(_measures(rows)),
        shared=data.packed_json(strings.contents() | {"cells": of_cells}),
    )


def _shown(cell: Row, rows_of: Mapping[str, Sequence[figures.Row]], cells: int) -> dict[str, Sequence[figures.Row]]:
    """Return the rows of the page of those tables of which it has other or fewer rows."""
    most_shares = max(1, min(_TOP_SHARES, _ALL_SHARES // cells))
    most_details = max(1, min(_TOP_DETAILS, _ALL_DETAILS // cells))
    return {
        "operators": figures.with_times(rows_of["operators"], rows_of["profile"]),
        "budget": figures.budget_of_page(rows_of["budget"], most_shares),
        "details": figures.details_of_page(rows_of["details"], cell["worst_operator"], most_details),
        "profile": _top_events(rows_of["profile"]),
    }


def log_characters(cells: int) -> int:
    """Return how many characters of each log the page has at most. `cells`: the number of cells with a log."""
    return min(_LOG_CHARACTERS, _ALL_LOGS_CHARACTERS // max(1, cells))


def _embedded(
    rows_of: Mapping[str, Sequence[figures.Row]],
    columns: Mapping[str, Sequence[str]],
    cell: CellView,
    strings: data.StringTable,
) -> dict[str, Any]:
    """Return the data of a cell that the page's scripts read.

    `rows_of`: the rows of the page by table name. `columns`: the columns of the page by table name.
    """
    embedded = {name: data.columnar(rows, columns[name], strings) for name, rows in rows_of.items() if rows}
    if latency := cell.latency:
        numbers = {name: data.six_digits(value) for name, value in latency.items() if name not in ("unit", "bins")}
        embedded["latency"] = {"unit": latency["unit"], "bins": latency["bins"]} | numbers
    return embedded if cell.log_text is None else embedded | {"log": cell.log_text}


def _measures(cells: Sequence[Row]) -> Row:
    """Return the measures by which the matrix can be coloured and, per cell, its numbers in the measures' order."""
    numbers = [figures.measured(cell) for cell in cells]
    # The first measure is the one that the page starts with.
    measures = [
        measure
        for measure in figures.MEASURES
        if measure is figures.MEASURES[0] or any(values[measure.name] is not None for values in numbers)
    ]
    return {
        "measures": [asdict(measure) for measure in measures],
        "cells": [
            [None if (value := values[measure.name]) is None else data.six_digits(value) for measure in measures]
            for values in numbers
        ],
    }


def summary_markdown(run: RunFacts, cells: Sequence[Row], links: str = "") -> str:
    """Return the summary for Prefect's Markdown artifact: counts of outcomes, paths, and the cells, worst first.

    `links`: the lines of Markdown that say where to read more.
    """
    rows = sorted(cells, key=_badness)
    head, *body = summary(rows, display.note_and_diagnosis)
    counts = count(rows, ()).in_words()
    return markdown_text("summary", run=run, cells=rows, counts=counts, links=links, head=head, lines=body)


def summary_rows(cells: Sequence[Row]) -> list[Row]:
    """Return the summary for Prefect's table artifact: rounded numbers, one row per cell, in the order of the plan."""
    head, *body = summary(cells, display.note_and_diagnosis)
    return [dict(zip(head, line, strict=True)) for line in body]


def summary(rows: Sequence[Row], note: Callable[[Row], str]) -> list[list[str]]:
    """Return the head of the summary table and one line per cell. The texts have no control characters.

    `note`: the function that returns a cell's text for the column `note`.
    """
    where = ["model", "scheme", "soc", *varying(rows)]
    lines = [[*where, "outcome", "note", *NUMBERS]]
    for row in rows:
        lines.append(
            [
                *(" ".join(display.printable(row[name] or display.NULL).split()) for name in where),
                f"{display.symbol(row['outcome'])} {display.words(row['outcome'])}",
                note(row),
                display.lowest(row["final_difference"], row["final_snr_db"], row.get("equal_elements")),
                display.percent(row["top1_agreement"]),
                display.kib(row["pte_bytes"]),
                display.pair(row["operators_compared"], row["operators_total"]),
                display.pair(row["delegated_nodes"], row["non_delegated_nodes"]),
                display.decimal(row["lower_s"]),
            ]
        )
    return lines


def _key(row: Row) -> tuple[str | None, ...]:
    return tuple(row[name] for name in _CELL)


def _work_of(cell: Row, work: Iterable[Row]) -> list[Row]:
    """Return the works for a cell. A work that several cells share has no scheme, no SoC or no device."""
    subject = ("model", "scheme", "backend", "soc", "device", "toolchain")
    return [row for row in work if row["model"] and all(row[name] in (None, cell[name]) for name in subject)]


def _compared_run(run: RunFacts) -> str | None:
    """Return the run whose captures `qnnsweep recompare` can compare again; None for a repair."""
    if run.command[1:2] == ("recompare",):
        return run.command[2].removeprefix("--run=")
    return run.run_id if run.command[1:2] == ("run",) else None


def _handed_on(run: RunFacts) -> RunFacts:
    """Return the facts with `~` in place of the user's home folder."""
    return replace(
        run, command=without_home(run.command), tables=without_home(run.tables), report=without_home(run.report)
    )


def _files(run: RunFacts) -> str:
    """Return the folder of the files, without its last quote, as a word of a shell. A shell expands no quoted `~`."""
    folder = f"{run.report.removesuffix('report.html')}files/"
    return f"~/'{folder[2:]}" if folder.startswith("~/") else f"'{folder}"


def _artifacts(run: RunFacts) -> str:
    """Return the word by which a command finds the run, after a space; nothing if that is the default."""
    place = display.artifacts_of(run)
    return "" if place is None else f" artifacts={shlex.quote(place)}"


def _by_cell(rows: Iterable[Row]) -> dict[tuple[str | None, ...], list[Row]]:
    by_cell: dict[tuple[str | None, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_cell[_key(row)].append(row)
    return by_cell


def _rank(outcome: str) -> int:
    return list(display.OUTCOMES).index(outcome) if outcome in display.OUTCOMES else -1


def _badness(row: Row) -> tuple[int, float]:
    snr = display.snr(row["final_difference"], row["final_snr_db"])
    return _rank(row["outcome"]), -math.inf if snr is None else snr


def varying(cells: Sequence[Row]) -> list[str]:
    """Return `toolchain`, `device` and `backend`, as far as the run has several. One other toolchain is shown too."""
    names = [name for name in ("toolchain", "device", "backend") if len({cell[name] for cell in cells} - {None}) > 1]
    others = {cell["toolchain"] for cell in cells} - {None, DEFAULT_TOOLCHAIN}
    return ["toolchain", *names] if others and "toolchain" not in names else names


def named(cell: Row, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell[name] or display.NULL for name in names)


def _matrix(
    cells: Sequence[CellView], names: Sequence[str]
) -> dict[str, dict[str, dict[tuple[str, ...], list[CellView]]]]:
    """Return the cells by model, scheme and column of the matrix, in the order of the plan."""
    matrix: dict[str, dict[str, dict[tuple[str, ...], list[CellView]]]] = {}
    for cell in cells:
        row = matrix.setdefault(cell["model"], {}).setdefault(cell["scheme"], {})
        row.setdefault(named(cell.row, names), []).append(cell)
    return matrix


def _troubles(cells: Sequence[CellView]) -> list[tuple[str, str, list[CellView]]]:
    """Return the cells that did not pass, in groups with the same outcome and note.

    A group is `(outcome, note, cells)`. The worst outcome is first and, within an outcome, the largest group.
    """
    groups: dict[tuple[str, str], list[CellView]] = defaultdict(list)
    for cell in cells:
        if cell["outcome"] != "passed":
            groups[cell["outcome"], _trouble(cell.row)].append(cell)
    ordered = sorted(groups.items(), key=lambda group: (_rank(group[0][0]), -len(group[1])))
    return [
        (outcome, note, sorted(members, key=lambda cell: _badness(cell.row))) for (outcome, note), members in ordered
    ]


def _trouble(cell: Row) -> str:
    """Return the note of a cell. Of a cell out of tolerance, return the cause: the numbers in the notes differ."""
    if cell["outcome"] != "out_of_tolerance":
        return display.note(cell)
    return f"largest error by {cell['worst_operator_cause']}" if cell["worst_operator_cause"] else ""


def _top_events(rows: Sequence[figures.Row]) -> list[figures.Row]:
    by_unit: dict[str, list[figures.Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["p50"] or 0.0, reverse=True):
        by_unit[row["unit"]].append(row)
    return [row for events in by_unit.values() for row in events[:_TOP_EVENTS]]


def _head(text: str) -> str:
    text = display.printable(text)
    left = len(text) - _ERROR_CHARACTERS
    return text if left <= 0 else f"{text[:_ERROR_CHARACTERS]}\n… {left:,} more characters in the cells table"


def _tail(text: str, characters: int) -> tuple[str, bool]:
    """Return the end of a log, from the start of a line if possible, and whether anything is left out."""
    if len(text) <= characters:
        return text, False
    start = text.find("\n", len(text) - characters) + 1 or len(text) - characters
    return text[start:], True
