"""Writes docs/tables.md and the table of tables in docs/results.md, from the row classes of tasks/records.

usage: make docs
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from qnnsweep.tasks.records import vocabulary
from qnnsweep.tasks.records.cell_rows import CellIdentity
from qnnsweep.tasks.records.hints import element, optional
from qnnsweep.tasks.records.tables import CELL_COLUMNS, TABLES, Column, columns

ROOT = Path(__file__).parents[1]
WIDTH = 100
HEAD = """\
# The tables

A run leaves one Parquet file per table, `tables/<table>/run=<run>/part.parquet` below `artifacts=`;
`pandas.read_parquet("artifacts/tables/cells")` reads the rows of all runs. The names and the types
of a table's columns do not change; a later version may add columns, which earlier runs do not have.
pandas uses the columns of the earliest run. To get later columns, read one run,
`tables/<table>/run=<run>`, or pass `schema=pyarrow.parquet.read_schema(FILE)` with a file of the
latest run. Null means "not defined"; NaN and infinities are never stored. Each file contains
[its own checksum](storage.md): qnnsweep reads no damaged table. `make docs` writes this page from
the row classes in [cell_rows.py](../tasks/records/cell_rows.py),
[operator_rows.py](../tasks/records/operator_rows.py) and
[repair_rows.py](../tasks/records/repair_rows.py), and the records that they contain.
"""


def files() -> dict[Path, str]:
    """Return every generated file and its text."""
    results = ROOT / "docs" / "results.md"
    meanings = {table: _docstring(kind).removeprefix("One row per ").rstrip(".") for table, kind in TABLES.items()}
    overview = "".join(f"| `{table}` | {meaning} |\n" for table, meaning in meanings.items())
    head = "| table | one row per |\n|---|---|\n"
    return {
        ROOT / "docs" / "tables.md": page(),
        results: re.sub(re.escape(head) + r"(\|.*\n)*", lambda _: head + overview, results.read_text()),
    }


def page() -> str:
    sections = [HEAD, "## In every table\n", describe(columns(CellIdentity))]
    for table, kind in TABLES.items():
        sections += [f"## `{table}`\n", textwrap.fill(_docstring(kind), WIDTH) + "\n"]
        sections += [describe(columns(kind)[len(CELL_COLUMNS) :])]
    for name, meanings in _vocabularies().items():
        lines = (_item(f"`{word}`: {meaning}") for word, meaning in meanings.items())
        sections += [f"## {_title(name)}\n", "".join(lines)]
    return "\n".join(sections)


def describe(described: Sequence[Column]) -> str:
    return "".join(_item(f"`{column.name}` ({_type(column)}): {_meaning(column)}") for column in described)


def _item(text: str) -> str:
    # A long code span would be cut at its spaces.
    return textwrap.fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False) + "\n"


def _type(column: Column) -> str:
    kind, plural = column.kind, ""
    if (item := element(kind)) is not None:
        kind, plural = optional(item)[0], "list of "
    if get_origin(kind) is Literal:
        titles = [_title(name).lower() for name in _vocabularies() if getattr(vocabulary, name) == kind]
        described = ", ".join(["string", *(f"[{title}](#{title.replace(' ', '-')})" for title in titles)])
    else:
        described = {str: "string", int: "integer", float: "float", bool: "boolean"}[kind]
    return plural + described + (f", {column.unit}" if column.unit else "")


def _vocabularies() -> dict[str, dict[str, str]]:
    """Return, for each documented Literal type, the meaning of every value."""
    public = {name: value for name, value in vars(vocabulary).items() if not name.startswith("_")}
    meanings = {tuple(value): value for value in public.values() if isinstance(value, dict)}
    literals = {name: get_args(value) for name, value in public.items() if get_origin(value) is Literal}
    return {name: meanings[values] for name, values in literals.items() if values in meanings}


def _title(name: str) -> str:
    return " ".join(re.findall(r"[A-Z][a-z]*", name)).capitalize()


def _meaning(column: Column) -> str:
    meanings = _docstrings(column.defined_in)
    assert column.name in meanings, f"{column.defined_in.__name__}.{column.name} has no docstring"
    return meanings[column.name]


@cache
def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(docstring.value).split())
        for field, docstring in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr)
    }


def _docstring(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
