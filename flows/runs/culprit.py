"""The culprit of a cell: the operator to examine first, with the user's line."""

from collections.abc import Sequence
from dataclasses import dataclass

from qnnsweep.tasks.records.source_lines import users_line
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.counts import cell_key


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """The operator of a cell to examine first: the one without whose error most of the worst output's error is gone."""

    cell: str
    """MODEL/SCHEME/SOC."""
    operator: str
    target: str
    """The operator's function, such as `aten.linear.default`."""
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
        return f"{self.cause or 'unknown cause'} in {operator}{place}"


def culprit(cell: Row, operators: Sequence[Row]) -> Culprit | None:
    """Return the culprit of a row of the table `cells`; None if no operator has an error that matters.

    `operators`: the rows of the table `operators` of the cell's run.
    """
    if cell["worst_operator"] is None:
        return None
    own = (row for row in operators if row["operator"] == cell["worst_operator"])
    named = [row for row in own if cell_key(row) == cell_key(cell)]
    operator = min(named, key=lambda row: row["sample"] != cell["worst_sample"])
    file, line = users_line(operator["stack_trace"] or "") or (None, None)
    return Culprit(
        cell="/".join(str(cell[name]) for name in ("model", "scheme", "soc")),
        operator=cell["worst_operator"],
        target=operator["target"],
        module=operator["module_path"] or "",
        cause=cell["worst_operator_cause"],
        verdict=cell["worst_operator_verdict"],
        file=file,
        line=line,
        effect_snr_db=cell["worst_operator_effect_snr_db"],
    )
