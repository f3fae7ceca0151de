"""The references besides the edge graph, in a sweep and in a recompare: only stored references can be compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.flows.cells.graph import other_references
from tests.flows.sweep_outputs import passed_result_of
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

DIGITS = (
    *("model=digits_cnn", "model.evaluation.count=8", "model.calibration.count=32", "limits.parallel=2"),
    "measure.operator_samples=1",
    "measure.cures=0",
)


def operators(artifacts: Path, run_id: str) -> list[dict[str, Any]]:
    return pq.read_table(artifacts / "tables" / "operators" / f"run={run_id}" / "part.parquet").to_pylist()


def without_run(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"run_id": None} for row in rows]


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.mark.parametrize(
    ("requested", "others"),
    [
        (["edge"], ()),
        ([], ()),
        (["quantized", "edge", "exported"], ("exported", "quantized")),
        (["quantized", "quantized"], ("quantized",)),
    ],
)
def test_the_edge_graph_is_always_a_reference_and_the_order_of_the_others_has_no_effect(
    requested: list[str], others: tuple[str, ...]
) -> None:
    assert other_references(MeasureConfig(references=requested)) == others


def test_a_run_stores_the_requested_references_and_is_compared_again_only_with_those(
    program: Program, tmp_path: Path
) -> None:
    here = f"--artifacts={tmp_path}"
    ran = program.run("run", "--json", *DIGITS, f"artifacts={tmp_path}", "measure.references=[exported]")
    run_id = passed_result_of(ran)["run_id"]
    rows = operators(tmp_path, run_id)
    assert Counter(row["reference"] for row in rows) == {"edge": 18, "exported": 18}
    (linear,) = [row for row in rows if (row["reference"], row["operator"]) == ("exported", "aten_linear_default")]
    assert (linear["source_nodes"], linear["status"], linear["verdict"]) == (["linear"], "compared", "blind")
    assert linear["introduced_snr_db"] is None

    again = program.run("recompare", "--json", here)
    assert without_run(operators(tmp_path, passed_result_of(again)["run_id"])) == without_run(rows)

    fewer = program.run("recompare", "--json", here, f"--run={run_id}", "measure.references=[edge]")
    edge = [row for row in rows if row["reference"] == "edge"]
    assert without_run(operators(tmp_path, passed_result_of(fewer)["run_id"])) == without_run(edge)

    more = program.run("recompare", here, f"--run={run_id}", "measure.references=[exported,quantized]")
    assert (more.returncode, more.stdout) == (2, "")
    assert more.stderr.splitlines()[-1].endswith(
        f"measure.references=quantized: run {run_id} did not store the values of that graph; "
        "to store them, run qnnsweep run with measure.references=[quantized]"
    )
