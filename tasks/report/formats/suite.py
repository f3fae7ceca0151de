"""A run as the CSV file of ExecuTorch's backend test suite, which its `generate_markdown_summary` reads.

The field names and the words of the results are those of `executorch.backends.test.suite.reporting` in ExecuTorch 1.5.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.formats import cells as of

_OUTPUTS = 2  # the suite has columns for so many final outputs
_FIELDS = (
    "Test ID",
    "Test Case",
    "Subtest",
    "Flow",
    "Params",
    "Result",
    "Result Detail",
    "Delegated",
    "Quantize Time (s)",
    "Lower Time (s)",
    "Delegated Nodes",
    "Undelegated Nodes",
    "Delegated Ops",
    "Undelegated Ops",
    "PTE Size (Kb)",
    *(f"Output {index} {what}" for index in range(_OUTPUTS) for what in ("Error Max", "Error MAE", "SNR")),
    "Error",
)
_DETAILS = {
    "quantize": "Quantization Failed",
    "lower": "Lowering Failed",
    "deploy": "PTE Load Failed",
    "execute": "PTE Run Failed",
    "collect": "PTE Run Failed",
}
_LONGEST_ERROR = 400


def suite(_: RunFacts, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return a header and one line per cell. An impossible cell is skipped."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for cell in tables["cells"]:
        writer.writerow(_line(cell, _of_cell(tables["delegation"], cell), _of_cell(tables["outputs"], cell)))
    return text.getvalue()


def _line(cell: Row, delegation: Sequence[Row], outputs: Sequence[Row]) -> dict[str, object]:
    result, detail = _result(cell)
    delegated = {row["operator"]: row["occurrences_delegated"] for row in delegation}
    undelegated = {row["operator"]: row["occurrences_not_delegated"] for row in delegation}
    error = "" if result == "Pass" else of.problem(cell)
    return {
        "Test ID": of.name(cell),
        "Test Case": cell["model"],
        "Subtest": 0,
        "Flow": f"{cell['backend']}_{cell['scheme']}",
        "Params": json.dumps({"soc": cell["soc"], "device": cell["device"]} | of.other_toolchain(cell)),
        "Result": result,
        "Result Detail": detail,
        "Delegated": str(bool(cell["delegated_nodes"])),
        "Quantize Time (s)": _fixed(cell["quantize_s"]),
        "Lower Time (s)": _fixed(cell["lower_s"]),
        "Delegated Nodes": cell["delegated_nodes"],
        "Undelegated Nodes": cell["non_delegated_nodes"],
        "Delegated Ops": _counts(delegated),
        "Undelegated Ops": _counts(undelegated),
        "PTE Size (Kb)": "" if cell["pte_bytes"] is None else f"{cell['pte_bytes'] / 1000:.3f}",
        **_errors(outputs),
        "Error": error if len(error) <= _LONGEST_ERROR else f"{error[:200]}...{error[-200:]}",
    }


def _result(cell: Row) -> tuple[str, str]:
    match of.outcome(cell):
        case "passed":
            return "Pass", ""
        case "impossible":
            return "Skip", ""
        case "out_of_tolerance":
            return "Fail", "Output Mismatch"
        case _:
            return "Fail", _DETAILS.get(cell["stage"], "Unknown Failure")


def _errors(outputs: Sequence[Row]) -> dict[str, str]:
    """Return, per final output on the device, the errors of the sample with the lowest SNR."""
    fields: dict[str, str] = {}
    for index in range(_OUTPUTS):
        rows = [row for row in outputs if (row["rung"], row["output_index"]) == ("device", index)]
        compared = [row for row in rows if row["snr_db"] is not None]
        if compared:
            worst = min(compared, key=lambda row: row["snr_db"])
            fields[f"Output {index} Error Max"] = _fixed(worst["max_abs"])
            fields[f"Output {index} Error MAE"] = _fixed(worst["mean_abs"])
            fields[f"Output {index} SNR"] = _fixed(worst["snr_db"])
    return fields


def _of_cell(rows: Iterable[Row], cell: Row) -> list[Row]:
    names = ("model", "scheme", "soc", "toolchain", "device", "backend")
    return [row for row in rows if all(row[name] == cell[name] for name in names)]


def _counts(counts: Mapping[str, int]) -> str:
    return str({name: count for name, count in sorted(counts.items()) if count})


def _fixed(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
