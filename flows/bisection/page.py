"""The certificate of a bisection as a Markdown page, and as an object for JSON."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qnnsweep.flows.bisection.certificate import NUMBERS, CertifiedFlip
from qnnsweep.flows.bisection.flow import BisectionResult
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.report.format import NULL, decimal
from qnnsweep.tasks.report.templates import markdown_text
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
    points = [
        (probe.point.label, probe.answer, probe.judgement.why or _text(probe.judgement.value))
        for probe in result.probes
    ]
    return markdown_text(
        "bisect", result=result, title=_title(result), points=points, numbers=_numbers, operators=_operators
    )


def summary(result: BisectionResult) -> dict[str, Any]:
    """Return the contents of the page for JSON."""
    return {
        "run_id": result.run.run.run_id,
        "reason": result.reason,
        "oracle": result.oracle.text,
        "key": result.bisection.key,
        "points": [{"label": probe.point.label} | asdict(probe.judgement) for probe in result.probes],
        "smallest": [difference.label for difference in result.smallest],
        "flips": [asdict(flip) | {"operator": flip.operator} for flip in result.flips],
        "report": result.run.run.report,
    }


def _title(result: BisectionResult) -> str:
    flips = result.flips
    if not flips or result.smallest or len(flips) > 1:
        title = result.reason
    else:
        title = f"{flips[0].after.label} is the first that is {flips[0].after.answer}"
    operator = next((flip.operator for flip in flips if flip.operator), None)
    return title + (f": {operator}" if operator else "")


def _operators(flip: CertifiedFlip) -> Iterator[tuple[str, str, str, str]]:
    for change in flip.operators[:_MOST_OPERATORS]:
        yield change.operator, change.module_path, decimal(change.good_db), decimal(change.bad_db)


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
