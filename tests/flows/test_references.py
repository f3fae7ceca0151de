"""Other references asked of a sweep, and of a past run: what was not kept cannot be asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conf.schema import MeasureConfig
from flows.graph import other_references

from .conftest import Program
from .sweep_outputs import passed_result_of

pytestmark = pytest.mark.toolchain

DIGITS = ("model=digits_cnn", "model.evaluation.count=8", "model.calibration.count=32", "limits.parallel=2")


def operators(artifacts: Path, run_id: str) -> list[dict[str, Any]]:
    return pq.read_table(artifacts / "tables" / "operators" / f"run={run_id}" / "part.parquet").to_pylist()


def without_run(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"run_id": None} for row in rows]


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.mark.parametrize(
    ("asked", "others"),
    [
        (["edge"], ()),
        ([], ()),
        (["quantized", "edge", "exported"], ("exported", "quantized")),
        (["quantized", "quantized"], ("quantized",)),
    ],
)
def test_the_edge_graph_is_always_one_and_the_order_of_the_others_means_nothing(
    asked: list[str], others: tuple[str, ...]
) -> None:
    assert other_references(MeasureConfig(references=asked)) == others


def test_a_run_keeps_the_references_it_was_asked_for_and_is_compared_again_with_those_alone(
    program: Program, tmp_path: Path
) -> None:
    here = f"--artifacts={tmp_path}"
    ran = program.run("run", "--json", *DIGITS, f"artifacts={tmp_path}", "measure.references=[exported]")
    made = passed_result_of(ran)
    rows = operators(tmp_path, made["run_id"])
    assert Counter(row["reference"] for row in rows) == {"edge": 18, "exported": 18}
    (linear,) = [row for row in rows if (row["reference"], row["operator"]) == ("exported", "aten_linear_default")]
    assert (linear["source_nodes"], linear["status"], linear["verdict"]) == (["linear"], "compared", "blind")
    assert linear["introduced_snr_db"] is None

    again = program.run("recompare", "--json", here)
    assert without_run(operators(tmp_path, passed_result_of(again)["run_id"])) == without_run(rows)

    fewer = program.run("recompare", "--json", here, f"--run={made['run_id']}", "measure.references=[edge]")
    edge = [row for row in rows if row["reference"] == "edge"]
    assert without_run(operators(tmp_path, passed_result_of(fewer)["run_id"])) == without_run(edge)

    more = program.run("recompare", here, f"--run={made['run_id']}", "measure.references=[exported,quantized]")
    assert (more.returncode, more.stdout) == (2, "")
    assert more.stderr.splitlines()[-1].endswith(
        f"measure.references=quantized: run {made['run_id']} did not keep that graph's values; "
        "qnnsweep run with measure.references=[quantized] does"
    )
