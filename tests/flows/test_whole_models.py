"""Shipped models as a whole: the class of a photograph, operators on both sides of a partition, and both runtimes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from qnnsweep.tasks.records.vocabulary import COMPARED
from tests.flows.sweep_outputs import passed_result_of
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.night, pytest.mark.toolchain]

DAISY = 985
MODELS = ("efficientnet_lite0", "minilm_l6", "digits_cnn", "tiny_gru")


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture(scope="module")
def sweep(program: Program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A sweep over the models, in both runtimes: the folder of its tables and its run id."""
    artifacts = tmp_path_factory.mktemp("artifacts")
    models = f"model={','.join(MODELS)}"
    overrides = (models, "scheme=16a8w", "soc=SM8650", "limits.parallel=2", "measure.second_runtime=true")
    small = ("model.calibration.count=4", "model.evaluation.count=1", "measure.operator_samples=1", "measure.cures=0")
    ran = program.run("run", "--json", *overrides, *small, f"artifacts={artifacts}")
    return artifacts / "tables", passed_result_of(ran)["run_id"]


def rows(sweep: tuple[Path, str], table: str, model: str) -> list[dict]:
    folder, run_id = sweep
    contents = pq.read_table(folder / table / f"run={run_id}" / "part.parquet").to_pylist()
    return [row for row in contents if row["model"] == model]


def test_the_flower_is_a_daisy_on_the_device(sweep: tuple[Path, str]) -> None:
    (flower,) = [
        row
        for row in rows(sweep, "outputs", "efficientnet_lite0")
        if (row["rung"], row["sample_name"]) == ("device", "flower")
    ]
    assert (flower["top1_actual"], flower["top1_reference"]) == (DAISY, DAISY)


def test_every_operator_of_a_convolutional_network_has_its_row(sweep: tuple[Path, str]) -> None:
    operators = rows(sweep, "operators", "efficientnet_lite0")
    assert [row["operator_index"] for row in operators] == list(range(len(operators)))
    statuses = [row["status"] for row in operators]
    compared = [row for row in operators if row["status"] in COMPARED]
    assert len(compared) >= 76
    # Every operator that runs is compared: the others only prepare weights for the compiler.
    assert set(statuses) - COMPARED == {"constant"}
    assert {row["verdict"] for row in operators if row["status"] == "constant"} == {"blind"}
    assert "blind" not in {row["verdict"] for row in compared}
    (cell,) = rows(sweep, "cells", "efficientnet_lite0")
    assert (cell["operators_total"], cell["operators_compared"]) == (len(operators), len(compared))


def test_operators_of_both_delegated_partitions_and_between_them_are_compared(sweep: tuple[Path, str]) -> None:
    operators = rows(sweep, "operators", "minilm_l6")
    compared = [row for row in operators if row["status"] in COMPARED]
    assert {row["subgraph"] for row in compared} == {0, 1, None}
    assert all(row["delegated"] is (row["subgraph"] is not None) for row in operators)
    (cell,) = rows(sweep, "cells", "minilm_l6")
    assert (cell["delegated_subgraphs"], cell["top1_agreement"]) == (2, None)


def test_an_operator_that_stays_on_the_cpu_has_the_refusal_of_the_compiler(sweep: tuple[Path, str]) -> None:
    refusals = {row["operator"]: row["refusals"] for row in rows(sweep, "delegation", "minilm_l6") if row["refusals"]}
    assert list(refusals) == ["aten_index_tensor"]
    assert "has incorrect Rank 4" in refusals["aten_index_tensor"][0]


@pytest.mark.parametrize("model", MODELS)
def test_onnxruntime_returns_every_tensor_that_executorchs_runtime_returns(sweep: tuple[Path, str], model: str) -> None:
    (cell,) = rows(sweep, "cells", model)
    assert cell["outcome"] == "passed"
    assert cell["equal_tensors"] > 0
