"""What the report's script reads: tables as column arrays, in JSON that is safe inside HTML."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tasks.report_display import printable
from tasks.report_figures import TREND_COLUMNS

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
    "values": lambda numbers: " ".join("-" if undefined(each) else f"{each:.7g}" for each in numbers),
    # The frame that wrote the operator; all frames of every operator would outweigh the rest of the page.
    "stack_trace": lambda trace: "\n".join([each for each in trace.strip().splitlines() if each.strip(" ^~")][-2:]),
}


def compact(rows: Sequence[Mapping[str, Any]], names: Sequence[str], strings: dict[str, int]) -> dict[str, Any]:
    """Column arrays: `$name` holds indices into `strings`; a column of one value is that value alone."""
    columns: dict[str, Any] = {"rows": len(rows)}
    for name in (name for name in names if name in rows[0]):
        values = [
            None if row[name] is None else _AS_TEXT[name](row[name]) if name in _AS_TEXT else row[name] for row in rows
        ]
        text = any(isinstance(value, str) for value in values)
        short = [
            value if value is None else strings.setdefault(printable(value), len(strings)) if text else six(value)
            for value in values
        ]
        columns[f"${name}" if text else name] = short[0] if len(set(short)) == 1 else short
    return columns


def undefined(value: float | None) -> bool:
    return value is None or math.isnan(value)


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
