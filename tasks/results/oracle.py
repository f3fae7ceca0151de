"""The oracle of a bisection: a condition on one value of a cell's rows, which says whether the cell is bad."""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args, get_origin

from qnnsweep.conf.errors import did_you_mean
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.cell_rows import CellRow
from qnnsweep.tasks.records.tables import Row, columns
from qnnsweep.tasks.results.bisection import Answer

INTRODUCED, SHARE = "introduced_snr_db", "share"
OF_OPERATORS = (INTRODUCED, SHARE)
"""The columns of one operator: its lowest introduced SNR of all samples, and its largest share of an output's error."""
FORM = "write COLUMN, one of < <= > >= == !=, and a value, such as 'final_snr_db<30'"
_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_EXACT = ("==", "!=")
_DIFFERENCES = {
    "final_snr_db": "final_difference",
    "device_snr_db": "device_difference",
    "observer_effect_snr_db": "observer_effect",
}
"""The columns that say why an SNR is null: because the outputs are equal, or because the noise is infinite."""
_INFINITE = {"none": math.inf, "infinite": -math.inf}
_COLUMNS = {column.name: column.kind for column in columns(CellRow)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Oracle:
    """A condition under which a cell is bad."""

    text: str
    operator: str | None
    """The operator that the condition is about; None if it is about a column of the table `cells`."""
    column: str
    comparison: str
    limit: float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The answer of an oracle for one cell."""

    answer: Answer
    value: float | str | None
    """The value that was compared; None if the cell is untestable."""
    why: str | None = None
    """Why the cell is untestable; None if it is not."""


untestable = partial(Judgement, answer="untestable", value=None)


def parsed_oracle(text: str) -> Oracle:
    """Return the oracle that `COLUMN<VALUE` or `OPERATOR.COLUMN<VALUE` describes. Raises RequestError."""
    written = re.fullmatch(r"\s*(?:(.+)\.)?(\w+)\s*(<=|>=|==|!=|<|>)\s*(.*\S)\s*", text)
    if written is None:
        raise RequestError(FORM, key="--oracle", value=text)
    name, column, comparison, value = written.groups()
    known = OF_OPERATORS if name else tuple(_COLUMNS)
    if column not in known:
        where = "of an operator" if name else "of the table cells"
        problem = f"no such column {where}; {did_you_mean(column, known)}one of {', '.join(sorted(known))}"
        raise RequestError(problem, key="--oracle", value=text)
    limit = _limit(text, float if name else _COLUMNS[column], comparison, value)
    return Oracle(text=text, operator=name, column=column, comparison=comparison, limit=limit)


def judgement(oracle: Oracle, tables: Mapping[str, Sequence[Row]]) -> Judgement:
    """Return the answer for a cell. `tables`: the rows of the cell, by table."""
    (cell,) = tables["cells"]
    if cell["outcome"] in ("infrastructure", "impossible"):
        return untestable(why=f"{cell['outcome']}: {_reason(cell)}")
    value = _of_cell(cell, oracle.column) if oracle.operator is None else _of_operator(oracle, tables)
    if value is None:
        what = oracle.column if oracle.operator is None else f"{oracle.operator}.{oracle.column}"
        return untestable(why=f"no {what}: {cell['outcome']}" + (f", {reason}" if (reason := _reason(cell)) else ""))
    is_bad = _COMPARISONS[oracle.comparison](value, oracle.limit)
    return Judgement(answer="bad" if is_bad else "good", value=value)


def introduced_snr_db(tables: Mapping[str, Sequence[Row]]) -> dict[str, float | None]:
    """Return, per operator of a cell, its lowest introduced SNR of all samples: ∞ if it is exact, None if unknown."""
    lowest: dict[str, float | None] = {}
    for row in tables["operators"]:
        if row["reference"] == "edge":
            values = (_introduced(row), lowest.get(row["operator"]))
            lowest[row["operator"]] = min((value for value in values if value is not None), default=None)
    return lowest


def _limit(text: str, kind: Any, comparison: str, value: str) -> float | str:
    """Return the value with which a column of this kind is compared. Raises RequestError."""
    if kind in (int, float):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise RequestError(f"{value} is no number", key="--oracle", value=text)
        return number
    if kind is not str and get_origin(kind) is not Literal:
        raise RequestError("this column has several values, which cannot be compared", key="--oracle", value=text)
    if comparison not in _EXACT:
        raise RequestError("this column is no number: compare it with == or !=", key="--oracle", value=text)
    if kind is not str and value not in get_args(kind):
        raise RequestError(f"one of {', '.join(get_args(kind))}", key="--oracle", value=text)
    return value


def _of_cell(cell: Row, column: str) -> float | str | None:
    return _INFINITE.get(cell[_DIFFERENCES[column]], cell[column]) if column in _DIFFERENCES else cell[column]


def _of_operator(oracle: Oracle, tables: Mapping[str, Sequence[Row]]) -> float | None:
    """Return the value of an operator; None if the operator, or the value, is not known."""
    introduced = introduced_snr_db(tables)
    if oracle.operator not in introduced:
        return None
    if oracle.column == INTRODUCED:
        return introduced[oracle.operator]
    shares: dict[tuple[int, int], float] = {}
    for row in tables["budget"]:
        share = row["share"] if row["operator"] == oracle.operator else 0.0
        place = row["output_index"], row["sample"]
        shares[place] = shares.get(place, 0.0) + (share or 0.0)
    return max(shares.values(), default=None)


def _introduced(row: Row) -> float | None:
    if row["status"] == "nonfinite_differs":
        return -math.inf
    if row["introduced_mse"] is None:  # an exact value was not computed again on the host
        return math.inf if row["status"] == "exact" else None
    return math.inf if row["introduced_mse"] == 0 else row[INTRODUCED]


def _reason(cell: Row) -> str:
    return str(cell["reason"] or cell["error"] or "").strip().partition("\n")[0]
