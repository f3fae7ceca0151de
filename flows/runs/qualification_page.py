"""The verdict page of a qualification, as Markdown that fits into a pull request."""

from collections.abc import Iterator, Sequence

from qnnsweep.flows.runs.diff import CellDifference, Change, cell_name
from qnnsweep.flows.runs.qualification import Qualification, ToolchainFacts
from qnnsweep.flows.runs.regressions import with_unit
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.report.format import NULL, duration, markdown, markdown_table, plural
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
_ALWAYS = ("executorch", "qnn")
"""The versions that the page has even if they are equal."""
_DIGESTS, _DIGITS = ("executorch_files", "qnn_files"), 12
_COLUMNS = ("cell", "what", "limit")


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
    return "\n".join(_lines(qualification)) + "\n"


def _lines(qualification: Qualification) -> Iterator[str]:
    before, after = qualification.before, qualification.after
    yield f"# {markdown(after.name)} instead of {markdown(before.name)}: {verdict(qualification)}"
    yield ""
    yield markdown_table(("", markdown(before.name), markdown(after.name)), _facts(before, after))
    yield ""
    total = len(qualification.difference.cells)
    yield (
        f"Of {plural(total, 'cell')} on both, the outputs of {qualification.equal_outputs} are equal, bit by bit. Run "
        f"`{qualification.run_id}`. Seconds and memory of compilations vary, and are not judged."
    )
    for kind, title in _SECTIONS:
        changes = qualification.changes(kind)
        if changes:
            yield from _section(title, changes, (before.name, after.name))
    yield from _tried(qualification)
    steady = len(qualification.changes("steady"))
    if steady:
        yield ""
        yield f"{plural(steady, 'smaller change')} within the limits."


def _tried(qualification: Qualification) -> Iterator[str]:
    """Yield the cells that a rule calls impossible and that pass with the second toolchain."""
    before, after = markdown(qualification.before.name), markdown(qualification.after.name)
    passing = [entry for entry in qualification.tried if entry.passed_after]
    still_failing = len(qualification.tried) - len(passing)
    for title, passed_before in (("possible now", False), ("passes with both", True)):
        entries = [entry for entry in passing if entry.passed_before is passed_before]
        if entries:
            yield ""
            yield f"## Called impossible, but {title} ({len(entries)})"
            yield ""
            yield markdown_table(
                ("cell", "reason of the rule", before, after),
                [
                    (cell_name({**entry.cell, "toolchain": None}), entry.reason, entry.before, entry.after)
                    for entry in entries[:_MOST_LINES]
                ],
            )
    if still_failing:
        yield ""
        yield f"{plural(still_failing, 'cell')} that a rule calls impossible did not pass with {after}."


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


def _section(
    title: str, changes: Sequence[tuple[CellDifference, Change]], toolchains: tuple[str, str]
) -> Iterator[str]:
    cell, what, limit = _COLUMNS
    yield ""
    yield f"## {title} ({len(changes)})"
    yield ""
    ordered = sorted(changes, key=lambda pair: (pair[1].what != "outcome", bool(pair[1].operator or pair[1].step)))
    lines = [
        (
            cell_name({**difference.cell, "toolchain": None}),
            ": ".join(filter(None, (change.operator, change.step, change.what))),
            *(with_unit(value, change.unit) for value in (change.before, change.after, change.limit)),
        )
        for difference, change in ordered[:_MOST_LINES]
    ]
    yield markdown_table((cell, what, *map(markdown, toolchains), limit), lines)
    if len(ordered) > _MOST_LINES:
        yield ""
        yield f"And {len(ordered) - _MOST_LINES} more; `--json` prints all."
