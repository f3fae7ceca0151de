"""What the report's script reads: tables as column arrays, in JSON that is safe inside HTML."""

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
EVIDENCE: dict[str, tuple[str, ...]] = {
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
READ_TOO: dict[str, tuple[str, ...]] = {"profile": ("program", "kind", "raw", "operators", "counted_in")}
"""Columns that the figures are computed from and that the page itself does not hold."""
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
    "values": lambda numbers: " ".join("-" if undefined(each) else _short(each) for each in numbers),
    # The frame that wrote the operator; all frames of every operator would outweigh the rest of the page.
    "stack_trace": lambda trace: "\n".join([each for each in trace.strip().splitlines() if each.strip(" ^~")][-2:]),
}


class Pool:
    """What many cells have in common, kept once: texts, and whole columns of a model's operators."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._columns: dict[tuple[Any, ...], int] = {}

    def text(self, value: str) -> int:
        return self._strings.setdefault(printable(value), len(self._strings))

    def column(self, values: tuple[Any, ...]) -> int:
        return self._columns.setdefault(values, len(self._columns))

    def contents(self) -> dict[str, Any]:
        return {"strings": list(self._strings), "columns": list(self._columns)}


def compact(rows: Sequence[Mapping[str, Any]], names: Sequence[str], pool: Pool) -> dict[str, Any]:
    """Column arrays: `$name` holds texts of the pool, `@name` is a column of it, a column of one value that value."""
    columns: dict[str, Any] = {"rows": len(rows)}
    for name in (name for name in names if name in rows[0]):
        values = [
            None if row[name] is None else _AS_TEXT[name](row[name]) if name in _AS_TEXT else row[name] for row in rows
        ]
        text = any(isinstance(value, str) for value in values)
        short = tuple(value if value is None else pool.text(value) if text else six(value) for value in values)
        key = f"${name}" if text else name
        if len(set(short)) == 1:
            columns[key] = short[0]
        else:
            columns[f"@{key}"] = pool.column(short)
    return columns


def undefined(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _short(value: float) -> str:
    """Enough for a line of some pixels: whole numbers whole, others with four significant digits."""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def six(value: Any) -> int | float | str:
    """Six significant digits; infinities as the text that JavaScript's Number() reads."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


def embedded_json(value: Any) -> Markup:
    """JSON that no HTML parser can be led out of."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above
