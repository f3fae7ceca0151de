"""The certificate of a bisection as a Markdown page, and as an object for JSON."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qnnsweep.flows.bisection.certificate import NUMBERS, CertifiedFlip
from qnnsweep.flows.bisection.flow import BisectionResult
from qnnsweep.flows.bisection.probes import Probe
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.report.format import NULL, decimal, markdown, markdown_table
from qnnsweep.tasks.storage.store import Store

_MOST_OPERATORS = 10
_DIGITS = 12


def write_page(result: BisectionResult, store: Store) -> str:
    """Write the page into the folder of the run, and return its place."""
    name = f"{run_folder(result.run.run.run_id)}/bisect.md"
    store.files.write(name, markdown_page(result).encode())
    return store.display_path(name)


def markdown_page(result: BisectionResult) -> str:
    """Return the page."""
    return "\n".join(_lines(result)) + "\n"


def summary(result: BisectionResult) -> dict[str, Any]:
    """Return the contents of the page for JSON. Infinite numbers are the texts `inf` and `-inf`."""
    contents = {
        "run_id": result.run.run.run_id,
        "reason": result.reason,
        "oracle": result.oracle.text,
        "key": result.bisection.key,
        "points": [_point(probe) for probe in result.probes],
        "smallest": [difference.label for difference in result.smallest],
        "flips": [asdict(flip) | {"operator": flip.operator} for flip in result.flips],
        "report": result.run.run.report,
    }
    return _for_json(contents)


def _point(probe: Probe) -> dict[str, Any]:
    judged = probe.judgement
    return {"label": probe.point.label, "answer": judged.answer, "value": judged.value, "why": judged.why}


def _for_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _for_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_for_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lines(result: BisectionResult) -> Iterator[str]:
    yield f"# {_title(result)}"
    yield ""
    yield f"A cell is bad if `{result.oracle.text}`. Run `{result.run.run.run_id}`."
    yield ""
    yield f"## What was measured ({len(result.probes)})"
    yield ""
    head = (
        "" if result.bisection.key is None else markdown(result.bisection.key),
        "answer",
        markdown(result.oracle.column),
    )
    yield markdown_table(head, map(_probe_line, result.probes))
    for flip in result.flips:
        yield from _flip(flip)


def _title(result: BisectionResult) -> str:
    flips = result.flips
    if not flips or result.smallest or len(flips) > 1:
        title = result.reason
    else:
        title = f"{flips[0].after.label} is the first that is {flips[0].after.answer}"
    operator = next((flip.operator for flip in flips if flip.operator), None)
    return markdown(title + (f": {operator}" if operator else ""))


def _probe_line(probe: Probe) -> tuple[str, str, str]:
    judged = probe.judgement
    return probe.point.label, judged.answer, judged.why or _text(judged.value)


def _flip(flip: CertifiedFlip) -> Iterator[str]:
    sides = (flip.good, flip.bad)
    yield ""
    yield f"## From {markdown(flip.before.label)} to {markdown(flip.after.label)}"
    yield ""
    yield markdown_table(("", "good", "bad"), _numbers(flip))
    if flip.between:
        yield ""
        yield "Between the two, untestable: " + ", ".join(markdown(side.label) for side in flip.between) + "."
    if flip.after.files:
        yield ""
        yield "Changed in the QNN backend: " + ", ".join(f"`{file}`" for file in flip.after.files) + "."
    if flip.operators:
        head = ("operator", "module", "introduced SNR dB, good", "introduced SNR dB, bad")
        yield ""
        yield markdown_table(
            head,
            (
                (change.operator, change.module_path, decimal(change.good_db), decimal(change.bad_db))
                for change in flip.operators[:_MOST_OPERATORS]
            ),
        )
    yield ""
    yield "```"
    for name, side in zip(("good", "bad"), sides, strict=True):
        yield f"# {name}: {side.label}"
        yield from side.commands
    yield "```"


def _numbers(flip: CertifiedFlip) -> Iterator[tuple[str, str, str]]:
    def line(what: str, good: float | str | None, bad: float | str | None) -> tuple[str, str, str]:
        return what, _text(good), _text(bad)

    good, bad = flip.good, flip.bad
    yield line("cell", good.label, bad.label)
    for name in NUMBERS:
        if (good.numbers[name], bad.numbers[name]) != (None, None):
            yield line(name, good.numbers[name], bad.numbers[name])
    if good.error or bad.error:
        yield line("error", good.error, bad.error)
    for name in good.versions:
        if good.versions[name] != bad.versions[name]:
            yield line(name, _short(good.versions[name]), _short(bad.versions[name]))
    yield line("sha256 of the outputs", _short(good.outputs_sha256), _short(bad.outputs_sha256))
    yield line("sha256 of the program", _short(good.program_sha256), _short(bad.program_sha256))
    yield line("digest of the toolchain", _short(good.toolchain_digest), _short(bad.toolchain_digest))


def _short(text: str | None) -> str | None:
    """Return the first digits of a digest, and any other text as it is."""
    is_digest = text is not None and len(text) == 64 and set(text) <= {*"0123456789abcdef"}
    return text[:_DIGITS] if text is not None and is_digest else text


def _text(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or NULL
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if math.isfinite(value) else decimal(value)
