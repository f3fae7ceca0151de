"""The data that the report's script reads: tables as column arrays, in JSON that is safe inside HTML."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tasks.report.figures import TREND_COLUMNS
from tasks.report.format import printable

_GAP = ("snr_db", "cosine", "max_abs", "mean_abs", "mse")
PAGE_COLUMNS: dict[str, tuple[str, ...]] = {
    "operators": (
        *("operator_index", "operator", "verdict", "introduced_snr_db", "introduced_steps", "effect_snr_db", "status"),
        *("delegated", *_GAP, "masked_elements", "masked_by", "introduced_spans", "why"),
        *("target", "shape", "dtype", "debug_handle"),
        *("output_index", "sample", "reference", "module_path", "stack_trace"),
        *("took_p50", "took_unit", "took_with", "counted_in"),
    ),
    "outputs": (
        *(
            "rung",
            "output",
            "sample_name",
            "status",
            *_GAP,
            "previous_snr_db",
            "shape",
            "label",
            "top1_reference",
            "top1_actual",
        ),
    ),
    "profile": ("event", "unit", "p50", "p10", "p90", "mean", "minimum", "maximum", "count", "delegate"),
    "delegation": ("operator", "occurrences_delegated", "occurrences_not_delegated", "refusals"),
    "commands": ("argv", "exit_code", "seconds"),
    "trends": TREND_COLUMNS,
}
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
    # Only the frame that called the operator: all frames of all operators would be larger than the rest of the page.
    "stack_trace": lambda trace: "\n".join([line for line in trace.strip().splitlines() if line.strip(" ^~")][-2:]),
}


class StringTable:
    """A table of the strings, and of the columns of a model's operators, that cells share: each is in the page once."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._columns: dict[tuple[Any, ...], int] = {}

    def text(self, value: str) -> int:
        return self._strings.setdefault(printable(value), len(self._strings))

    def column(self, values: tuple[Any, ...]) -> int:
        return self._columns.setdefault(values, len(self._columns))

    def contents(self) -> dict[str, Any]:
        return {"strings": list(self._strings), "columns": list(self._columns)}


def columnar(rows: Sequence[Mapping[str, Any]], names: Sequence[str], table: StringTable) -> dict[str, Any]:
    """Return the rows as column arrays.

    A key `$name` marks indices into the strings of `table`, `@name` the index of a column there. A column whose rows
    all have the same value is that value.
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
    """Return an integer in full and any other number with four significant digits, enough for a sparkline."""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def six_digits(value: Any) -> int | float | str:
    """Return `value` with six significant digits, or an infinity as the text that JavaScript's Number() reads."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


def embedded_json(value: Any) -> Markup:
    """Return `value` as JSON in which no HTML parser finds markup."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above
