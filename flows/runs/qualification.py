"""The comparison of two toolchains that one run swept: what got worse, what got better, and what changed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from qnnsweep.conf.names import AXES
from qnnsweep.flows.runs.diff import (
    CELL,
    CellDifference,
    Change,
    Difference,
    Side,
    differences,
    number_change,
    pairs_of,
)
from qnnsweep.flows.runs.history import Row, names
from qnnsweep.tasks.numerics.series import Series
from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.report.format import note
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

_BYTES = Series(unit="bytes", better=-1, relative=True)
_BYTE_COUNTS = ("fill_bytes", "read_total_bytes", "write_total_bytes")
"""The compiler's byte counts that are no series of a cell, because they are not compared from night to night."""
_BYTES_FLOOR = 0.05
COMPILE_SECONDS = ("edge_s", "lower_s")
_COMPILE_STAGES = ("edge", "lower")
RULED_AXES = tuple(axis for axis in AXES if axis != "device")
"""The axes of cells, except for the device, which no rule of a backend depends on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolchainFacts:
    """A toolchain of the qualification, and sums over its cells."""

    name: str
    versions: Mapping[str, str | None]
    """The versions of the toolchain, by the columns of the table `cells`."""
    passed: int
    cells: int
    program_bytes: int
    compile_seconds: float
    """Time of the compilations of all cells. SoCs that were compiled together share a part, which is counted once."""
    peak_bytes: int | None
    """Largest memory of a compilation; None if this run compiled nothing, because everything was in the cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A cell that a rule calls impossible, tried with both toolchains."""

    cell: Mapping[str, str | None]
    reason: str
    """The rule's reason."""
    before: str
    after: str
    """The outcomes; if the cell did not pass, with the error."""
    passed_before: bool
    passed_after: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Qualification:
    """The comparison of a toolchain with the present one. `difference` has the names of the toolchains as its runs."""

    run_id: str
    before: ToolchainFacts
    after: ToolchainFacts
    difference: Difference
    equal_outputs: int
    """Number of cells whose final outputs are equal, bit by bit."""
    tried: Sequence["Tried"]
    """The cells that a rule calls impossible. They are in no other part of the comparison."""
    unusable: int
    """Number of cells that could not be measured, because a device or this machine failed."""

    def changes(self, verdict: str) -> list[tuple[CellDifference, Change]]:
        """Return the changes of all cells that have this verdict."""
        cells = self.difference.cells
        return [(cell, change) for cell in cells for change in cell.changes if change.verdict == verdict]

    @property
    def passed(self) -> bool:
        """Whether nothing got worse."""
        return self.difference.regressions == 0 and self.unusable == 0


def qualify(
    store: Store, run_id: str, before: str, after: str, excluded: Mapping[tuple[str, ...], str] | None = None
) -> Qualification:
    """Return the comparison of the toolchain `after` with the toolchain `before`, which the run swept both.

    `excluded`: the reason of each cell that a rule calls impossible, by the cell's names on `RULED_AXES`.
    """
    contents = (tables.rows(store, table, run_id) for table in ("cells", "operators", "steps", "work"))
    cells, operators, steps, work = contents
    reasons = excluded or {}

    def of(table: Sequence[Row], toolchain: str) -> list[Row]:
        return [row for row in table if row["toolchain"] == toolchain]

    def reason(row: Row) -> str | None:
        return reasons.get(tuple(row[axis] for axis in RULED_AXES))

    def side(name: str, *, is_excluded: bool = False) -> Side:
        """Return the rows of a toolchain. They get the name of the second, because only equal names are compared."""
        of_cells = [row for row in of(cells, name) if (reason(row) is not None) == is_excluded]
        return Side(
            name=name,
            cells=[{**row, "toolchain": after} for row in of_cells],
            operators=[{**row, "toolchain": after} for row in of(operators, name)],
            steps=[{**row, "toolchain": after} for row in of(steps, name)],
        )

    def facts(name: str, side: Side) -> ToolchainFacts:
        (first, *_), costs = of(cells, name), of(work, name)
        return _facts(name, {field.name: first[field.name] for field in fields(Toolchain)}, side.cells, costs)

    sides = (side(before), side(after))
    pairs = pairs_of(sides[0].cells, sides[1].cells)
    difference = differences(*sides)
    of_operators = [_operators_of(part) for part in sides]
    extended = [
        replace(cell, changes=[*_explained(cell.changes, a, b), *_counts(a, b), *_operators(a, b, of_operators)])
        for cell, (a, b) in zip(difference.cells, pairs, strict=True)
    ]
    tried = pairs_of(side(before, is_excluded=True).cells, side(after, is_excluded=True).cells)
    return Qualification(
        run_id=run_id,
        before=facts(before, sides[0]),
        after=facts(after, sides[1]),
        difference=replace(difference, cells=extended),
        equal_outputs=sum(
            a["outputs_sha256"] is not None and a["outputs_sha256"] == b["outputs_sha256"] for a, b in pairs
        ),
        tried=[_tried(a, b, reason(b) or "") for a, b in tried],
        unusable=sum(row["outcome"] == "infrastructure" for part in sides for row in part.cells),
    )


def _tried(before: Row, after: Row, reason: str) -> Tried:
    return Tried(
        cell={name: after[name] for name in CELL},
        reason=reason,
        before=_outcome(before),
        after=_outcome(after),
        passed_before=before["outcome"] == "passed",
        passed_after=after["outcome"] == "passed",
    )


def _facts(name: str, versions: Mapping[str, str | None], cells: Sequence[Row], work: Iterable[Row]) -> ToolchainFacts:
    ran = [row for row in cells if row["outcome"] != "impossible"]
    edges = {(row["model"], row["scheme"], row["backend"], row["edge_s"]) for row in ran}
    return ToolchainFacts(
        name=name,
        versions=versions,
        passed=sum(row["outcome"] == "passed" for row in ran),
        cells=len(ran),
        program_bytes=sum(row["pte_bytes"] or 0 for row in ran),
        compile_seconds=sum(edge[-1] or 0.0 for edge in edges) + sum(row["lower_s"] or 0.0 for row in ran),
        peak_bytes=max((row["peak_bytes"] for row in work if row["stage"] in _COMPILE_STAGES), default=None),
    )


def _explained(changes: Iterable[Change], before: Row, after: Row) -> Iterator[Change]:
    """Yield the changes without the latency of a simulator. An outcome is followed by the cell's reason or error."""
    for change in changes:
        if change.what == "latency_p50_ms" and change.verdict == "changed":
            continue
        if change.what == "outcome":
            yield replace(change, before=_outcome(before), after=_outcome(after))
        else:
            yield change


def _outcome(row: Row) -> str:
    why = "" if row["outcome"] == "passed" else note(row)
    return ": ".join(filter(None, (row["outcome"], why)))


def _counts(before: Row, after: Row) -> Iterator[Change]:
    for name in _BYTE_COUNTS:
        yield from number_change(name, _BYTES, before[name], after[name], _BYTES_FLOOR)


_Operators = dict[tuple[tuple[str | None, ...], str], Row]


def _operators_of(side: Side) -> _Operators:
    """Return one row of every operator of the edge graph."""
    rows: _Operators = {}
    for row in side.operators:
        if row["reference"] == "edge":
            rows.setdefault((names(row), row["operator"]), row)
    return rows


def _operators(before: Row, after: Row, sides: Sequence[_Operators]) -> Iterator[Change]:
    """Yield the operators of a cell whose grid or whose place changed."""
    for (cell, operator), then in sides[0].items():
        now = sides[1].get((names(after), operator)) if cell == names(before) else None
        if now is None:
            continue
        grids = [_grid(row) for row in (then, now)]
        if grids[0] != grids[1]:
            yield Change(what="grid", operator=operator, before=grids[0], after=grids[1], verdict="changed")
        if then["delegated"] != now["delegated"]:
            was, is_ = ("delegated" if row["delegated"] else "on the CPU" for row in (then, now))
            verdict = "improved" if now["delegated"] else "regressed"
            yield Change(what="place", operator=operator, before=was, after=is_, verdict=verdict)


def _grid(row: Row) -> str | None:
    if not row["scale"]:
        return None
    scales, zero_points = row["scale"], row["zero_point"]
    if len(scales) > 1:
        return f"{len(scales)} scales from {min(scales)!r} to {max(scales)!r}"
    return f"scale {scales[0]!r}, zero point {zero_points[0]}"
