"""The verdict page of a qualification, as Markdown that fits into a pull request."""

from collections.abc import Iterator, Mapping, Sequence

from qnnsweep.flows.runs.diff import CellDifference, Change, cell_name
from qnnsweep.flows.runs.qualification import Qualification, ToolchainFacts, Tried
from qnnsweep.flows.runs.regressions import with_unit
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.report.format import NULL, duration, plural
from qnnsweep.tasks.report.templates import markdown_text
from qnnsweep.tasks.storage.store import Store

_MOST_LINES = 40
"""The longest list. GitHub accepts 65,536 characters in a comment."""
_MIB = 2**20
_SECTIONS = (
    ("regressed", "Worse"),
    ("improved", "Better"),
    ("changed", "Changed"),
    ("undefined", "Not measured on both"),
)
_TRIED = (("possible now", False), ("passes with both", True))
_ALWAYS = ("executorch", "qnn")
"""The versions that the page has even if they are equal."""
_DIGESTS, _DIGITS = ("executorch_files", "qnn_files"), 12


def page_name(qualification: Qualification) -> str:
    """Return the name of the page's file in the store."""
    before, after = qualification.before.name, qualification.after.name
    return f"{run_folder(qualification.run_id)}/qualify-{before}-{after}.md"


def write_page(qualification: Qualification, store: Store) -> str:
    """Write the page into the folder of the run, and return its place."""
    name = page_name(qualification)
    store.files.write(name, markdown_page(qualification).encode())
    return store.display_path(name)


def verdict(qualification: Qualification) -> str:
    """Return the verdict in one line."""
    worse, better = (len(qualification.changes(kind)) for kind in ("regressed", "improved"))
    if qualification.unusable:
        return f"not decided: {plural(qualification.unusable, 'cell')} could not be measured"
    if worse:
        return f"{plural(worse, 'value')} got worse, {better} got better"
    return f"nothing got worse, {plural(better, 'value')} got better"


def markdown_page(qualification: Qualification) -> str:
    """Return the page."""
    passing = [entry for entry in qualification.tried if entry.passed_after]
    return markdown_text(
        "qualify",
        qualification=qualification,
        verdict=verdict(qualification),
        facts=_facts(qualification.before, qualification.after),
        sections=[(title, _changes(qualification.changes(kind))) for kind, title in _SECTIONS],
        tried=[(title, _tried(passing, passed_before)) for title, passed_before in _TRIED],
        still_failing=len(qualification.tried) - len(passing),
        steady=len(qualification.changes("steady")),
        most=_MOST_LINES,
    )


def _facts(before: ToolchainFacts, after: ToolchainFacts) -> Iterator[tuple[str, str, str]]:
    def line(what: str, *values: str | None) -> tuple[str, str, str]:
        first, second = (value or NULL for value in values)
        return what, first, second

    sides = (before, after)
    for name in before.versions:
        values = [side.versions[name] for side in sides]
        if name in _ALWAYS or values[0] != values[1]:
            yield line(name, *(value and value[:_DIGITS] if name in _DIGESTS else value for value in values))
    yield line("cells that passed", *(f"{side.passed} of {side.cells}" for side in sides))
    yield line("size of all programs", *(with_unit(side.program_bytes, "bytes") for side in sides))
    yield line("time of all compilations", *(duration(side.compile_seconds) for side in sides))
    yield line(
        "largest memory of a compilation",
        *("in the cache" if side.peak_bytes is None else f"{side.peak_bytes / _MIB:,.0f} MiB" for side in sides),
    )


def _changes(changes: Sequence[tuple[CellDifference, Change]]) -> list[tuple[str, ...]]:
    ordered = sorted(changes, key=lambda pair: (pair[1].what != "outcome", bool(pair[1].operator or pair[1].step)))
    return [
        (
            _name(difference.cell),
            ": ".join(filter(None, (change.operator, change.step, change.what))),
            *(with_unit(value, change.unit) for value in (change.before, change.after, change.limit)),
        )
        for difference, change in ordered
    ]


def _tried(passing: Sequence[Tried], passed_before: bool) -> list[tuple[str, ...]]:
    """Return the cells that a rule calls impossible and that pass with the second toolchain."""
    entries = [entry for entry in passing if entry.passed_before is passed_before]
    return [(_name(entry.cell), entry.reason, entry.before, entry.after) for entry in entries]


def _name(cell: Mapping[str, str | None]) -> str:
    return cell_name({**cell, "toolchain": None})
