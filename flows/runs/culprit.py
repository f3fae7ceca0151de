"""The culprit of a cell: the operator or the input to examine first, with the user's line."""

from collections.abc import Sequence
from dataclasses import dataclass

from qnnsweep.tasks.numerics.verdict import matters
from qnnsweep.tasks.records.source_lines import users_line
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.counts import cell_key

INPUT = "input"


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """What to examine first of a cell: the first part of the worst output's budget that has a tenth of the error."""

    cell: str
    """MODEL/SCHEME/SOC."""
    operator: str
    """The name of the operator, or of the input of the model."""
    target: str
    """The operator's function, such as `aten.linear.default`; `input` for an input of the model."""
    module: str
    """The path of the module of the user's model; empty for an operator outside all modules."""
    cause: str | None
    """The cause of its error, as in the table `budget`; None if no effect on an output is known."""
    verdict: str | None
    file: str | None
    """The file of the user's code with the line that calls the operator; None if no trace has it."""
    line: int | None
    effect_snr_db: float | None
    """SNR of the final output if this error were the only one, in dB."""

    def __str__(self) -> str:
        place = f" ({self.file}:{self.line})" if self.file else ""
        operator = f"{self.operator} of {self.module}" if self.module else self.operator
        operator = f"the input {operator}" if self.target == INPUT else operator
        return f"{self.cause or 'unknown cause'} in {operator}{place}"


def culprit(cell: Row, operators: Sequence[Row], budget: Sequence[Row]) -> Culprit | None:
    """Return the culprit of a row of the table `cells`; None if nothing has an error that matters.

    `operators`, `budget`: the rows of these tables of the cell's run.
    """
    if cell["worst_operator"] is None:
        return None
    where = "/".join(str(cell[name]) for name in ("model", "scheme", "soc"))
    if (first := _first_input(cell, budget)) is not None:
        return Culprit(
            cell=where,
            operator=first["operator"],
            target=INPUT,
            module="",
            cause=first["cause"],
            verdict=None,
            file=None,
            line=None,
            effect_snr_db=first["alone_snr_db"],
        )
    own = (row for row in operators if row["operator"] == cell["worst_operator"])
    named = [row for row in own if cell_key(row) == cell_key(cell)]
    operator = min(named, key=lambda row: row["sample"] != cell["worst_sample"])
    file, line = users_line(operator["stack_trace"] or "") or (None, None)
    return Culprit(
        cell=where,
        operator=cell["worst_operator"],
        target=operator["target"],
        module=operator["module_path"] or "",
        cause=cell["worst_operator_cause"],
        verdict=cell["worst_operator_verdict"],
        file=file,
        line=line,
        effect_snr_db=cell["worst_operator_effect_snr_db"],
    )


def _first_input(cell: Row, budget: Sequence[Row]) -> Row | None:
    """Return the row of the budget of the worst output that comes first, of those that matter, if it is of an input.

    It is none if the worst operator was not chosen by the budget: if it introduces NaNs, for example.
    """
    if cell["worst_operator_effect_snr_db"] is None:
        return None
    where = cell["worst_final_output"], cell["worst_sample"]
    parts = (row for row in budget if row["operator"] is not None and (row["output"], row["sample"]) == where)
    of_cell = (row for row in parts if cell_key(row) == cell_key(cell))
    effects = ("share", "alone_snr_db", "without_snr_db")
    first = next((row for row in of_cell if matters(*(row[name] for name in effects))), None)
    return first if first is not None and first["operator_index"] is None else None
