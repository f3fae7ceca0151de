"""A run as annotations for a GitHub workflow: per cause, and at the lines of the user's model that introduce errors.

The form is that of the workflow command `::error file=…,line=…,title=…::message`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.source_lines import users_line
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import OWN_ERROR
from qnnsweep.tasks.report.formats import cells as of

_LINE = re.compile(r"\(([\w.-]+\.py):(\d+)\)")
_SOC = "soc=\0"
"""Stands for the SoC of a cell in a command, in which cells with the same cause differ."""


def github(_: RunFacts, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return one line per annotation: first the causes for which cells did not pass, then the operators that introduce
    errors.

    An operator's annotation is an error if some cell with this operator did not pass, and otherwise a warning.
    """
    lines = [*_cells(tables["cells"]), *_operators(tables["cells"], tables["operators"])]
    return "".join(f"{line}\n" for line in lines)


def annotation(problem: str) -> str:
    """Return one line that annotates a problem of which no run has a row."""
    return _command("error", {**_place(problem), "title": "qnnsweep"}, problem)


def _cells(cells: Sequence[Row]) -> Iterator[str]:
    causes: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for cell in cells:
        if of.outcome(cell) not in {"passed", "impossible"}:
            problem = of.problem(cell).replace(f"soc={cell['soc']}", _SOC)
            causes[of.outcome(cell), problem].append(cell)
    for (outcome, problem), members in causes.items():
        names, more = [of.name(cell) for cell in members], len(members) - 1
        title = f"{names[0]}{f' and {more} more' if more else ''}: {outcome}"
        problem = problem.replace(_SOC, f"soc={','.join(dict.fromkeys(str(cell['soc']) for cell in members))}")
        yield _command("error", {**_place(problem), "title": title}, "\n".join([problem, *(names if more else ())]))


def _place(problem: str) -> dict[str, str]:
    """Return the file below the working folder and the line that a message names as in `(net.py:8)`, if it names one.

    If several files have the name, none is returned.
    """
    if (named := _LINE.search(problem)) is None:
        return {}
    here = Path.cwd()
    files = [file.relative_to(here) for file in here.rglob(named[1]) if "site-packages" not in file.parts]
    return {"file": str(files[0]), "line": named[2]} if len(files) == 1 else {}


def _operators(cells: Sequence[Row], operators: Sequence[Row]) -> Iterator[str]:
    passed = {of.name(cell) for cell in cells if of.outcome(cell) == "passed"}
    lowest: dict[tuple[str, int], dict[tuple[str, str], float | None]] = defaultdict(dict)
    for row in operators:
        if (
            row["verdict"] in OWN_ERROR
            and row["reference"] == "edge"
            and (line := users_line(row["stack_trace"] or ""))
        ):
            key, known = (row["operator"], of.name(row)), lowest[line]
            numbers = [number for number in (known.get(key), row["introduced_snr_db"]) if number is not None]
            known[key] = min(numbers, default=None)
    for (file, number), introduced in lowest.items():
        level = "warning" if all(cell in passed for _, cell in introduced) else "error"
        names = ", ".join(dict.fromkeys(operator for operator, _ in introduced))
        message = "\n".join(
            f"{operator} in {cell}" + ("" if snr_db is None else f": introduces an error, {snr_db:.1f} dB")
            for (operator, cell), snr_db in introduced.items()
        )
        place = {"file": file, "line": str(number), "title": f"The device computes {names} differently"}
        yield _command(level, place, message)


def _command(level: str, properties: Mapping[str, str], message: str) -> str:
    """Return a workflow command, escaped as GitHub's toolkit does it."""
    escaped = ",".join(f"{name}={_escaped(value, property_=True)}" for name, value in properties.items())
    return f"::{level} {escaped}::{_escaped(message)}"


def _escaped(text: str, *, property_: bool = False) -> str:
    for character in "%\r\n" + (":," if property_ else ""):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
