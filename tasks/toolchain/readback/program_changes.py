"""What differs between two programs: sizes, methods, delegation, options, operators, encodings and constants."""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from typing import Any, TypeVar

from qnnsweep.tasks.records import InspectedProgram

Row = TypeVar("Row")
_NUMBER = re.compile(r" \d+(?=[,/])|_\d+\b")
_LONGEST, _SHORTENED = 60, 12
_ABSENT, _PRESENT = "absent", "present"
_NAMING = ("method", "subgraph", "number", "name", "operator", "option", "key", "shared_with")
"""The fields that place and name a row. All others are compared."""
_QNN = "QnnBackend"
OPAQUE = "compiled bytes (a QNN context binary does not name its constants)"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramChange:
    """A difference between two programs."""

    kind: str
    """`size`, `method`, `delegate`, `option`, `operator`, `tensor`, `constant` or `named data`."""
    where: str
    """The method, and the number of its delegated subgraph; empty for the whole program."""
    what: str
    """The name of the tensor, option or operator, and its property."""
    before: str
    after: str


def program_changes(a: InspectedProgram, b: InspectedProgram) -> list[ProgramChange]:
    """Return all differences. Rows are paired in their order by their names, in which numbers have no meaning."""

    def changes(kind: str, rows: Callable[[InspectedProgram], Sequence[Any]], *key: str) -> list[ProgramChange]:
        return [*_changes(kind, rows(a), rows(b), lambda row: tuple(_keyed(row, name) for name in key))]

    inside = [
        *changes("operator", lambda program: program.operators, "method", "subgraph", "operator"),
        *changes("tensor", lambda program: _tensors(program, False), "method", "subgraph", "role", "name"),
        *changes("constant", lambda program: _tensors(program, True), "method", "subgraph", "name"),
    ]
    found = [
        *changes("method", lambda program: program.methods, "method"),
        *changes("delegate", lambda program: program.delegates, "method", "backend"),
        *changes("option", lambda program: program.options, "method", "subgraph", "option"),
        *inside,
        # The key of most data is its own digest: they are constants of subgraphs, which are compared above.
        *changes("named data", lambda program: [row for row in program.named_data if row.key != row.sha256], "key"),
    ]
    explained = {change.where for change in inside}
    found = [change for change in found if change.what != "XnnpackBackend sha256" or change.where not in explained]
    if a.bytes != b.bytes:
        size = ProgramChange(kind="size", where="", what="bytes", before=f"{a.bytes:,}", after=f"{b.bytes:,}")
        found.insert(0, size)
    return found


def _tensors(program: InspectedProgram, constant: bool) -> list[Any]:
    return [tensor for tensor in program.tensors if (tensor.role == "constant") is constant]


def _keyed(row: Any, name: str) -> Hashable:
    """Return a part of a row's key. A delegated subgraph may have another number in the other program."""
    value = getattr(row, name)
    return value is None if name == "subgraph" else _NUMBER.sub("", value)


def _changes(kind: str, a: Sequence[Any], b: Sequence[Any], key: Callable[[Any], Hashable]) -> Iterator[ProgramChange]:
    for before, after in _paired(a, b, key):
        row: Any = after if before is None else before
        places = [getattr(row, name, None) for name in ("method", "subgraph")]
        where = " ".join(str(place) for place in places if place is not None)
        names = [getattr(row, name, None) for name in ("name", "operator", "option", "key", "backend")]
        what = next((name for name in names if name is not None), "")
        if before is None or after is None:
            sides = [_ABSENT if side is None else _PRESENT for side in (before, after)]
            yield ProgramChange(kind=kind, where=where, what=what, before=sides[0], after=sides[1])
            continue
        for field in fields(row):
            values = [getattr(side, field.name) for side in (before, after)]
            if field.name not in _NAMING and values[0] != values[1]:
                sides = [_text(*pair) for pair in (values, values[::-1])]
                is_opaque = (what, field.name) == (_QNN, "sha256")
                named = OPAQUE if is_opaque else f"{what} {field.name}".strip()
                yield ProgramChange(kind=kind, where=where, what=named, before=sides[0], after=sides[1])


def _paired(
    a: Sequence[Row], b: Sequence[Row], key: Callable[[Row], Hashable]
) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield the rows of two sequences in pairs of equal keys, in their order; None stands for an absent row."""
    matcher = SequenceMatcher(None, [*map(key, a)], [*map(key, b)], autojunk=False)
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(a[start_a:end_a], b[start_b:end_b], strict=True)
        else:
            yield from ((row, None) for row in a[start_a:end_a])
            yield from ((None, row) for row in b[start_b:end_b])


def _text(value: Any, other: Any) -> str:
    """Return a value as text. Of long values, the part around the first difference from the other value."""
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other) > 1:
        differing = [index for index, pair in enumerate(zip(value, other, strict=True)) if pair[0] != pair[1]]
        more = f" and {len(differing) - 1} others" if len(differing) > 1 else ""
        return f"[{differing[0]}] {value[differing[0]]:.9g}{more}"
    if isinstance(value, tuple):
        value = value[0] if len(value) == 1 else f"{len(value)} values" if len(value) > 8 else list(value)
    if isinstance(value, float):
        return f"{value:.9g}"
    text = "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_SHORTENED]}…"
