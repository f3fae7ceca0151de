"""The summary of a run for the terminal. Everything but a command fits into any width."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records import tables as records
from qnnsweep.tasks.report import format as display
from qnnsweep.tasks.report import one_line_table
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.report.one_line_table import OneLineTable
from qnnsweep.tasks.report.page import NUMBERS, named, summary, varying

_DROPPED_FIRST = ("lower s", "delegated / CPU", "pte KiB", "operators", "top-1 %")
_NOTE_CHARACTERS = 300  # the page has the whole note
_MOST_DIAGNOSES = 8  # with more, only those of the cells that did not pass
_COMMAND = re.compile(r"`(qnnsweep [^`]*)`")
_INDENT = "  "
_OWN_SOC, _OWN_CELL = "soc=\0", "/\0`"
"""Stand for the SoC of a cell in the command of its diagnosis: in an override, and in the name of the cell."""


def summary_table(run: RunFacts, cells: Sequence[records.Row], trends: Sequence[records.Row] = ()) -> OneLineTable:
    """Return one line per cell, in the order of the plan. A note has lines of its own below its cell."""
    head, *body = summary(cells, display.note)
    rows: list[one_line_table.Row] = []
    for cell, line in zip(cells, body, strict=True):
        style = display.OUTCOMES.get(cell["outcome"], ("", "", "bold red"))[2]
        values = {name: Text(value, style if name == "outcome" else "") for name, value in zip(head, line, strict=True)}
        note = values.pop("note").plain
        note = note if len(note) <= _NOTE_CHARACTERS else f"{note[: _NOTE_CHARACTERS - 1]}…"
        rows.append(one_line_table.Row(values=values, note=Text(note, "dim")))
    return OneLineTable(
        columns=[name for name in head if name != "note"],
        rows=rows,
        dropped_first=_DROPPED_FIRST,
        right=NUMBERS,
        title=f"run {run.run_id}",
        caption="  ".join(count(cells, trends).in_words()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnoses:
    """Diagnoses, each below the names of its cells.

    A command has a line of its own, which can be copied. It may be longer than the terminal is wide: print it with
    `crop=False`.
    """

    diagnoses: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for cells, diagnosis in self.diagnoses:
            yield Text(cells, "bold")
            for number, text in enumerate(_COMMAND.split(diagnosis)):
                if number % 2:
                    yield Text(f"{_INDENT}{text}", "cyan", no_wrap=True, overflow="ignore")
                elif rest := text.removeprefix(".").strip():
                    yield Padding(Text(rest), (0, 0, 0, len(_INDENT)), expand=False)


def summary_diagnoses(cells: Sequence[records.Row]) -> Diagnoses | None:
    """Return every diagnosis with the names of its cells; None if there is no diagnosis.

    If there are many diagnoses, only those of the cells that did not pass are returned.
    """
    compared = [cell for cell in cells if display.compared(cell)]  # other diagnoses only repeat a note
    diagnoses = named_diagnoses(compared, varying(cells))
    if len(diagnoses) > _MOST_DIAGNOSES:
        not_passed = [cell for cell in compared if cell["outcome"] != "passed"]
        diagnoses = named_diagnoses(not_passed, varying(cells))
    return Diagnoses(diagnoses=diagnoses) if diagnoses else None


def named_diagnoses(cells: Sequence[records.Row], others: Sequence[str]) -> list[tuple[str, str]]:
    """Return every diagnosis after the names of its cells, which are of one model and scheme.

    Cells whose diagnoses differ in the SoC of the command alone have one diagnosis, whose command has all of them.
    `others`: what the names have beside the model, the scheme and the SoC.
    """
    by_diagnosis: dict[tuple[str, str, str], list[records.Row]] = defaultdict(list)
    for cell in cells:
        if cell["diagnosis"]:
            diagnosis = cell["diagnosis"].replace(f"soc={cell['soc']}", _OWN_SOC)
            diagnosis = diagnosis.replace(f"/{cell['soc']}`", _OWN_CELL)
            by_diagnosis[cell["model"], cell["scheme"], diagnosis].append(cell)
    diagnoses: list[tuple[str, str]] = []
    for (model, scheme, diagnosis), rows in by_diagnosis.items():
        where = ", ".join(" ".join(named(row, ["soc", *others])) for row in rows)
        diagnosis = diagnosis.replace(_OWN_SOC, f"soc={','.join(dict.fromkeys(str(row['soc']) for row in rows))}")
        diagnosis = diagnosis.replace(_OWN_CELL, f"/{rows[0]['soc']}`")  # the command takes one cell
        diagnoses.append((display.printable(f"{model} {scheme} {where}"), display.printable(diagnosis)))
    return diagnoses


def summary_samples(cells: Sequence[records.Row]) -> list[str]:
    """Return a line per model whose data source says where the samples are from, with that and its random weights."""
    lines: dict[str, None] = {}
    for cell in cells:
        if origin := cell.get("samples_origin"):
            weights = "random weights, " if "random" in str(cell["weights"]).split(", ") else ""
            lines[display.printable(f"{cell['model']}: {weights}samples: {origin}")] = None
    return [*lines]
