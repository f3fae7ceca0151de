"""The rows of requantized values, from sample records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import OperatorComparison, RequantizedTensor
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from tests.sample_records import (
    ABORT,
    COMPARISON,
    CONV,
    LOWERED,
    PARTS,
    TOOLCHAIN,
    WORSE,
    passed_cell,
    up_to_lower,  # isort: skip,
    with_method,
)

CONVERSION = replace(CONV, index=2, name="conv (requantized for view)", debug_handle=None)


def rows_of(cell: CellResult, table: str) -> list[dict[str, Any]]:
    return rows("20261121T094931Z-5fcc", [cell], TOOLCHAIN)[table]


def test_a_requantized_value_has_a_row_without_an_index_and_is_no_operator_of_the_cell(planned: Request) -> None:
    cell = passed_cell(planned)
    row = OperatorComparison(operator=CONVERSION, sample=0, status="compared", gap=WORSE, verdict="within_grid")
    cell.comparison = replace(COMPARISON, requantized=(row,))
    *others, added = rows_of(cell, "operators")
    assert others == rows_of(passed_cell(planned), "operators")
    columns = ("operator_index", "operator", "debug_handle", "reference", "sample", "status", "verdict", "snr_db")
    assert [added[column] for column in columns] == [
        None, "conv (requantized for view)", None, "edge", 0, "compared", "within_grid", 30.0,
    ]  # fmt: skip
    assert rows_of(cell, "cells") == rows_of(passed_cell(planned), "cells")


def test_a_wrong_conversion_counts_among_the_operators_that_introduce_error(planned: Request) -> None:
    cell = passed_cell(planned)
    row = OperatorComparison(
        operator=CONVERSION, sample=1, status="compared", gap=WORSE, verdict="introduced",
        parts=replace(PARTS, introduced_snr_db=1.0),
    )  # fmt: skip
    cell.comparison = replace(COMPARISON, requantized=(row,), budget=())
    (cell_row,) = rows_of(cell, "cells")
    assert (cell_row["operators_introduced"], cell_row["operators_compared"], cell_row["operators_total"]) == (2, 2, 4)
    assert cell_row["worst_operator"] == "conv (requantized for view)"


def test_a_requantized_value_that_was_not_compared_has_a_row_per_sample(planned: Request) -> None:
    tensor = RequantizedTensor(operator=CONVERSION, identifier="to_copy@0", instruction=0, source=0, readers=(1,))
    cell = up_to_lower(planned, "measure", ABORT)
    cell.lowered = with_method(LOWERED, requantized=(tensor,))
    rows_by_sample = [(row["operator_index"], row["operator"], row["status"]) for row in rows_of(cell, "operators")]
    assert rows_by_sample == [
        (0, "conv", "not_dumped"),
        (1, "view", "not_dumped"),
        (None, "conv (requantized for view)", "not_dumped"),
    ] * 2  # fmt: skip
