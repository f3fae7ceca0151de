"""Overrides that do not fit the model are found before anything is calibrated, by a run and by a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import OverridePrecision, SchemeOverride
from qnnsweep.flows.cells.overrides import wrong_overrides
from qnnsweep.flows.cli.check_models import check_plan
from qnnsweep.tasks.records import LoweredProgram
from tests.program import Program

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

WRONG = "scheme.overrides=[{module:feature.3,precision:cpu}]"
LINE = (
    "scheme.overrides[0].module=feature.3: matches no module of the model; there are features.3, features.6, "
    "features.5, features.2, features.0, features, and 1 others"
)
CELL = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.evaluation.count=4"]


def test_a_run_is_refused_after_the_export_and_then_the_plan_says_why(served_program: Program, tmp_path: Path) -> None:
    words = [*CELL, WRONG, f"artifacts={tmp_path}"]
    ran = served_program.run("run", *words)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, f"qnnsweep: {LINE}")
    assert [path.name.partition("-")[0] for path in (tmp_path / "results" / "records").iterdir()] == ["export"]
    planned = served_program.run("plan", "--json", *words)
    (cell,) = json.loads(planned.stdout)["cells"]
    assert (planned.returncode, cell["error"]) == (1, LINE)


def test_a_plan_that_is_checked_exports_the_models_of_schemes_with_overrides(tmp_path: Path) -> None:
    plan = load([*CELL, WRONG, f"artifacts={tmp_path}", "backend=qnn,xnnpack"])
    assert check_plan(plan).errors == [LINE, None]
    assert [cell.impossible is None for cell in plan.cells] == [True, False]
    assert not list(tmp_path.glob("results/*/*")), "no stage has run"


def test_only_the_requests_with_wrong_overrides_have_an_error(
    request_8a8w: Request, lowered: LoweredProgram, resources: Resources
) -> None:
    def with_module(path: str) -> Request:
        override = SchemeOverride(module=path, precision=OverridePrecision.cpu)
        return replace(request_8a8w, scheme=replace(request_8a8w.scheme, overrides=[override]))

    requests = [request_8a8w, with_module("feature.3"), with_module("features.3")]
    errors = wrong_overrides(requests, lambda _: lowered.quantized.exported, resources)
    assert [None if error is None else str(error) for error in errors] == [None, LINE, None]
    assert wrong_overrides(requests, lambda _: None, resources) == [None, None, None], "there is no graph"
