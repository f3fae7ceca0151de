"""The rows of the table `operators`, from sample records."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import ErrorParts
from qnnsweep.tasks.records.cell_rows import CellIdentity
from qnnsweep.tasks.records.tables import columns
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from tests.sample_records import (
    CAPTURE,
    CAPTURED_METHOD,
    COMPARISON,
    LOWERED,
    PARTS,
    TOOLCHAIN,
    passed_cell,
    with_method,
)

GAP = {"mse": 0.25, "mean_abs": 0.5, "max_abs": 0.75, "snr_db": 40.0, "cosine": 0.875}


def rows_of(cell: CellResult, table: str) -> list[dict[str, Any]]:
    """Return a cell's rows without the columns that every table begins with, and without the method."""
    left_out = {"method", *(column.name for column in columns(CellIdentity))}
    whole_rows = rows("20261121T094931Z-5fcc", [cell], TOOLCHAIN)[table]
    return [{name: value for name, value in row.items() if name not in left_out} for row in whole_rows]


def test_an_operator_has_one_row_per_sample_with_its_gap_or_a_status(planned: Request) -> None:
    conv = {
        "operator_index": 0,
        "operator": "conv",
        "target": "aten.convolution.default",
        "debug_handle": 4,
        "output_index": 0,
        "module_path": "layers.0",
        "stack_trace": "line 3",
        "source_nodes": ("conv2d",),
        "reads": (),
        "shape": (1, 2, 8, 8),
        "dtype": "float32",
        "scale": (0.5,),
        "zero_point": (3,),
        "axis_order": (0, 2, 3, 1),
        "delegated": True,
        "subgraph": 0,
        "reference": "edge",
        "sample": 0,
        "sample_role": "typical",
        "status": "masked",
        "nonfinite_actual": 1,
        "nonfinite_reference": 2,
        "masked_elements": 5,
        "masked_by": ("relu",),
        **GAP,
        **asdict(PARTS),
        "introduced_spans": ("pad",),
        "effect_snr_db": None,
        "verdict": "introduced",
        "why": None,
    }
    untouched = {"nonfinite_actual": 0, "nonfinite_reference": 0, "masked_elements": 0, "masked_by": ()}
    never_replayed = untouched | {**asdict(ErrorParts()), "introduced_spans": (), "effect_snr_db": None}
    view = dict.fromkeys(conv) | {
        "operator_index": 1,
        "operator": "view",
        "target": "aten.view_copy.default",
        "output_index": 0,
        "module_path": "",
        "stack_trace": "",
        "source_nodes": (),
        "reads": (),
        "delegated": False,
        "reference": "edge",
        "sample": 0,
        "sample_role": "typical",
        "status": "no_handle",
        "verdict": "blind",
        "why": "no such kernel",
        **never_replayed,
    }
    exact = (
        conv
        | never_replayed
        | {"effect_snr_db": 35.0, "status": "exact", "mse": 0.0, "snr_db": None, "verdict": "exact"}
        | (second := {"sample": 1, "sample_role": "worst"})
    )
    assert rows_of(passed_cell(planned), "operators") == [conv, view, exact, view | second | {"why": None}]


def test_a_sample_that_the_lowering_did_not_choose_is_the_worst_on_the_device(planned: Request) -> None:
    (files,) = CAPTURED_METHOD.debug
    capture = with_method(CAPTURE, debug=(replace(files, samples=(0,)), replace(files, samples=(1,))))
    lowered = with_method(LOWERED, chosen=LOWERED.methods[0].chosen[:1])
    cell = passed_cell(planned, lowered=lowered, capture=capture)
    roles = [(row["sample"], row["sample_role"]) for row in rows_of(cell, "operators")]
    assert roles == [(0, "typical"), (0, "typical"), (1, "worst on the device"), (1, "worst on the device")]
    assert [row["sample_role"] for row in rows_of(cell, "cells")] == ["worst on the device"]


def test_the_worst_sample_has_no_role_if_it_was_not_captured(planned: Request) -> None:
    (files,) = CAPTURED_METHOD.debug
    rows_of_first = tuple(row for row in COMPARISON.operators if row.sample == 0)
    cell = passed_cell(
        planned,
        capture=with_method(CAPTURE, debug=(replace(files, samples=(0,)),)),
        comparison=replace(COMPARISON, operators=rows_of_first, budget=()),
    )
    (row,) = rows_of(cell, "cells")
    assert (row["worst_sample"], row["worst_sample_name"], row["sample_role"]) == (1, "b", None)


def test_the_worst_operator_is_that_of_the_worst_sample(planned: Request) -> None:
    conv, *others = COMPARISON.operators
    last = replace(others[1], status="compared", verdict="introduced", parts=replace(PARTS, introduced_snr_db=70.0))
    (cell,) = rows_of(
        passed_cell(planned, comparison=replace(COMPARISON, operators=(conv, *others[:1], last, *others[2:]))), "cells"
    )
    assert (cell["worst_operator_introduced_snr_db"], conv.parts.introduced_snr_db) == (70.0, 20.0)
