"""The data that the report's script reads: tables as column arrays, in JSON that is safe inside HTML."""

import base64
import gzip
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from qnnsweep.tasks.records.vocabulary import CAUSES, OPERATOR_STATUSES, RUNGS, STEP_ORIGINS, VERDICTS
from qnnsweep.tasks.report.figures import BUDGET_COLUMNS, DETAIL_COLUMNS, TREND_COLUMNS
from qnnsweep.tasks.report.format import printable
from qnnsweep.tasks.report.glossary import MEASURES, TERMS


class View(NamedTuple):
    """A column of a long table in the page."""

    title: str
    column: str
    format: str  # the name of a format in page.js
    if_it_varies: bool = False  # leave the column out if all rows have the same value
    detail: bool = False  # leave the column out of a page with more than `DETAILED_OPERATORS` rows of operators


VIEWS: dict[str, tuple[View, ...]] = {
    "operators": (
        View("module", "module_path", "text"),
        View("operator", "operator", "text"),
        View("verdict", "verdict", "text"),
        View("final output with only its introduced error, dB", "effect_snr_db", "db"),
        View("#", "operator_index", "whole"),
        View("status", "status", "text"),
        View("total dB", "snr_db", "db"),
        View("inherited dB", "inherited_snr_db", "db", detail=True),
        View("grid dB", "grid_snr_db", "db", detail=True),
        View("introduced dB", "introduced_snr_db", "db"),
        View("worst channel dB", "introduced_channel_snr_db", "db", detail=True),
        View("steps", "introduced_steps", "real"),
        View("mean steps", "introduced_mean_steps", "real", detail=True),
        View("gain", "introduced_gain", "real", detail=True),
        View("clipped", "clipped_elements", "whole", detail=True),
        View("codes used", "codes_used", "whole", detail=True),
        View("max abs", "max_abs", "real"),
        View("mean abs", "mean_abs", "real", detail=True),
        View("cosine", "cosine", "cosine"),
        View("mse", "mse", "real", detail=True),
        View("runs on", "delegated", "place"),
        View("target", "target", "text"),
        View("shape", "shape", "text"),
        View("dtype", "dtype", "text"),
        View("handle", "debug_handle", "whole"),
        View("output", "output_index", "whole", if_it_varies=True),
        View("sample", "sample", "whole", if_it_varies=True),
        View("captured as", "sample_role", "text", if_it_varies=True),
        View("reference", "reference", "text", if_it_varies=True),
        View("masked by", "masked_by", "text"),
        View("elements masked", "masked_elements", "whole", if_it_varies=True),
        View("introduced with", "introduced_spans", "text"),
        View("why", "why", "text"),
        View("took p50", "took_p50", "real"),
        View("in", "took_unit", "text"),
        View("counted in", "counted_in", "text"),
        View("written at", "stack_trace", "text"),
    ),
    "outputs": (
        View("rung", "rung", "text"),
        View("output", "output", "text"),
        View("sample", "sample_name", "text"),
        View("status", "status", "text"),
        View("SNR dB", "snr_db", "db"),
        View("against previous rung", "previous_snr_db", "db"),
        View("max abs", "max_abs", "real"),
        View("mean abs", "mean_abs", "real"),
        View("cosine", "cosine", "cosine"),
        View("mse", "mse", "real"),
        View("label", "label", "whole"),
        View("top-1 eager", "top1_reference", "whole"),
        View("top-1 here", "top1_actual", "whole"),
        View("SNR about channel means", "centred_snr_db", "db"),
        View("worst row dB", "row_snr_db", "db"),
        View("rows", "rows", "whole", if_it_varies=True),
        View("same top-1", "rows_same_top1", "whole", if_it_varies=True),
        View("equal elements", "equal_elements", "real", if_it_varies=True),
        View("shape", "shape", "text"),
        View("why", "why", "text", if_it_varies=True),
    ),
    "steps": (
        View("sequence", "sample_name", "text"),
        View("step", "step", "whole"),
        View("method", "method", "text", if_it_varies=True),
        View("origin", "origin", "text"),
        View("total dB", "total_snr_db", "db"),
        View("introduced dB", "introduced_snr_db", "db"),
        View("inherited dB", "inherited_snr_db", "db"),
        View("introduced in the debug program dB", "debug_introduced_snr_db", "db"),
        View("states introduced dB", "state_introduced_snr_db", "db"),
        View("token", "token", "whole", if_it_varies=True),
        View("token eager", "token_reference", "whole", if_it_varies=True),
        View("text", "text", "text", if_it_varies=True),
        View("text eager", "text_reference", "text", if_it_varies=True),
        View("label", "label", "whole", if_it_varies=True),
        View("margin", "margin", "real", if_it_varies=True),
        View("error of a score", "score_error", "real", if_it_varies=True),
        View("states at ends", "at_ends", "real", if_it_varies=True),
        View("states against another method dB", "other_method_snr_db", "db", if_it_varies=True),
        View("sample of the method", "method_sample", "whole"),
    ),
    "profile": (
        View("event", "event", "text"),
        View("p50", "p50", "real"),
        View("unit", "unit", "text"),
        View("p10", "p10", "real"),
        View("p90", "p90", "real"),
        View("mean", "mean", "real"),
        View("min", "minimum", "real"),
        View("max", "maximum", "real"),
        View("count", "count", "whole"),
        View("runs on", "delegate", "place"),
    ),
    "delegation": (
        View("operator", "operator", "text"),
        View("delegated", "occurrences_delegated", "whole"),
        View("on CPU", "occurrences_not_delegated", "whole"),
        View("messages of the compiler", "refusals", "lines"),
    ),
    "modules": (
        View("module", "module_path", "text"),
        View("share of the time", "share", "real"),
        View("mean", "mean", "real"),
        View("of the module itself", "own_mean", "real"),
        View("unit", "unit", "text"),
        View("program", "program", "text", if_it_varies=True),
        View("counted in", "counted_in", "text", if_it_varies=True),
    ),
    "audit": (
        View("status", "status", "text"),
        View("check", "check", "text"),
        View("subject", "subject", "text"),
        View("asked", "asked", "text"),
        View("in the program", "got", "text"),
        View("program", "program", "text"),
        View("subgraph", "subgraph", "whole", if_it_varies=True),
        View("reason", "reason", "text", if_it_varies=True),
    ),
    "probe": (
        View("status", "status", "text"),
        View("side", "side", "text"),
        View("mistake", "mistake", "text"),
        View("relative error", "relative_error", "real"),
        View("with the mistake", "relative_error_mistaken", "real"),
        View("sample", "sample", "whole", if_it_varies=True),
        View("detail", "detail", "text", if_it_varies=True),
    ),
    "work": (
        View("call", "stage", "text"),
        View("seconds", "seconds", "db"),
        View("peak memory, MiB", "peak_bytes", "mebibytes"),
        View("for the scheme", "scheme", "text"),
        View("for the SoC", "soc", "text"),
    ),
    "commands": (
        View("exit", "exit_code", "whole"),
        View("seconds", "seconds", "db"),
        View("command", "argv", "lines"),
    ),
}
"""The long tables of a cell and their columns, in order. A column that is listed here is in the page."""
EXTRA_COLUMNS: dict[str, tuple[str, ...]] = {
    "operators": ("took_with", "reads"),
    "budget": BUDGET_COLUMNS,
    "details": DETAIL_COLUMNS,
    "trends": TREND_COLUMNS,
}
"""Columns that are in the page only for the figures and cards."""
TERM_OF_COLUMN = {
    "snr_db": "total",
    "inherited_snr_db": "inherited error",
    "grid_snr_db": "grid error",
    "introduced_snr_db": "introduced error",
    "introduced_channel_snr_db": "worst channel",
    "introduced_steps": "steps",
    "introduced_mean_steps": "steps",
    "introduced_gain": "gain",
    "clipped_elements": "clipped",
    "codes_used": "codes used",
    "effect_snr_db": "alone",
    "delegated": "delegate",
    "debug_handle": "handle",
    "reference": "reference",
    "rung": "rung",
}
"""The terms of the glossary that explain the heads of columns."""
PAGE_TABLES = (*VIEWS, *(name for name in EXTRA_COLUMNS if name not in VIEWS))
DETAILED_OPERATORS = 20_000
MEANINGS = {
    "verdict": VERDICTS,
    "status": OPERATOR_STATUSES,
    "cause": CAUSES,
    "rung": RUNGS,
    "origin": STEP_ORIGINS,
    "term": {**MEASURES, **TERMS},
}
"""What the words in these columns mean, and the terms of the page. The page shows a meaning beside its word."""
_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "shape": lambda dims: "×".join(str(int(dim)) for dim in dims) or "scalar",
    "argv": shlex.join,
    "refusals": "\n".join,
    "masked_by": ", ".join,
    "introduced_spans": ", ".join,
    "took_with": ", ".join,
    "counted_in": ", ".join,
    "changed": "\n".join,
    "runs": " ".join,
    "values": lambda numbers: " ".join("-" if undefined(number) else _short(number) for number in numbers),
    "reads": lambda indices: " ".join(map(str, indices)),
    "histogram": lambda counts: " ".join(map(str, counts)),
    "channel_errors": lambda errors: " ".join(f"{error:.3g}" for error in errors),
    "heat": lambda errors: _shares_of_largest(errors),
    # Only the frame that called the operator: all frames of all operators would be larger than the rest of the page.
    "stack_trace": lambda trace: "\n".join([line for line in trace.strip().splitlines() if line.strip(" ^~")][-2:]),
}


class StringTable:
    """The strings and columns of the page's cells. A string or column that several cells share is stored only once."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._columns: dict[tuple[Any, ...], int] = {}

    def text(self, value: str) -> int:
        return self._strings.setdefault(printable(value), len(self._strings))

    def column(self, values: tuple[Any, ...]) -> int:
        return self._columns.setdefault(values, len(self._columns))

    def contents(self) -> dict[str, Any]:
        return {"strings": list(self._strings), "columns": list(self._columns), "views": VIEWS} | {
            "meanings": MEANINGS,
            "terms": TERM_OF_COLUMN,
        }


def page_columns(table: str, *, detailed: bool = True) -> tuple[str, ...]:
    """Return the names of the table's columns that are in the page."""
    views = (view for view in VIEWS.get(table, ()) if detailed or not view.detail)
    return (*(view.column for view in views), *EXTRA_COLUMNS.get(table, ()))


def columnar(rows: Sequence[Mapping[str, Any]], names: Sequence[str], table: StringTable) -> dict[str, Any]:
    """Return the rows as column arrays.

    A key of the result is a column's name, possibly with a prefix. `$` means that the column's values are indices into
    the strings of `table`. `@` means that the entry is the index of a column in `table`. If a key has both, `@` is
    first. A column whose rows all have the same value is stored as that value.
    """
    columns: dict[str, Any] = {"rows": len(rows)}
    for name in (name for name in names if name in rows[0]):
        values = [
            None if row[name] is None else _AS_TEXT[name](row[name]) if name in _AS_TEXT else row[name] for row in rows
        ]
        text = any(isinstance(value, str) for value in values)
        short = tuple(value if value is None else table.text(value) if text else six_digits(value) for value in values)
        key = f"${name}" if text else name
        if len(set(short)) == 1:
            columns[key] = short[0]
        else:
            columns[f"@{key}"] = table.column(short)
    return columns


def undefined(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _short(value: float) -> str:
    """Return an integer in full, and any other number with four significant digits. A sparkline needs no more."""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def _shares_of_largest(values: Sequence[float]) -> str:
    """Return the largest value, and then every value in percent of it. An empty text without values."""
    largest = max(values, default=0.0)
    shares = (f"{100 * value / largest:.0f}" if largest else "0" for value in values)
    return " ".join([f"{largest:.3g}", *shares]) if len(values) else ""


def six_digits(value: Any) -> int | float | str:
    """Return an integer in full, another number with six significant digits, and an infinity as text for JavaScript."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


def embedded_json(value: Any) -> Markup:
    """Return `value` as JSON in which no HTML parser finds markup."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above


def packed_json(value: Any) -> str:
    """Return `value` as JSON, compressed by gzip, in base64, which has no markup."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
