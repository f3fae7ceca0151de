"""Batch norms: those that torchao would fold wrongly, and those that HTP computes by a wrong kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.program import Program

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

LINES = """
import json, qnnsweep
from tests.toolchain.batch_norm_models import BeforeActivation, images
options = {"scheme": SCHEME, "soc": SOC, "artifacts": FOLDER, "progress": False}
before = qnnsweep.debug(BeforeActivation(), images(), **options)
options["overrides"] = ["scheme.overrides=[{operator: batch_norm, as_conv2d: true}]", "measure.cures=0"]
after = qnnsweep.debug(BeforeActivation(), images(), **options)
operators = after.operators[after.operators.module_path.isin(["first", "second"])]
print(json.dumps({"sentence": before.sentence, "lowest": [before.worst_snr_db, after.worst_snr_db],
    "verdicts": sorted(operators.verdict.dropna().unique()), "targets": sorted(operators.target.unique())}))
"""


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("residual", 1),
        ("linear", 1),
        ("planes", 2),
        ("volumes", 1),
        ("one weight, one of two calls", 1),
        ("one weight, other batch norms", 2),
        ("transposed in groups", 1),
    ],
)
def test_a_batch_norm_that_torchao_would_fold_wrongly_is_a_convolution_of_its_own(
    resources: Resources, kind: str, written: int
) -> None:
    from tests.toolchain.batch_norm_models import prepared_with_and_without

    ours, theirs, count = resources.workers.call("quantize", prepared_with_and_without, kind).value
    assert ours < 1e-5
    assert theirs > 0.01, "torchao has no such error any more"
    assert count == written


@pytest.mark.parametrize("kind", ["folded", "one weight, one batch norm"])
def test_a_batch_norm_that_torchao_folds_rightly_is_folded(resources: Resources, kind: str) -> None:
    from tests.toolchain.batch_norm_models import prepared_with_and_without

    ours, theirs, count = resources.workers.call("quantize", prepared_with_and_without, kind).value
    assert ours == theirs < 1e-5
    assert count == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "soc", "gain_db"), [("16a8w", "SM8650", 15), pytest.param("8a8w", "SM8550", 1, marks=pytest.mark.night)]
)
def test_a_batch_norm_that_htp_computes_wrongly_has_a_cure_whose_gain_is_as_predicted(
    scheme: str, soc: str, gain_db: float, served_program: Program, tmp_path: Path
) -> None:
    values = {"SCHEME": scheme, "SOC": soc, "FOLDER": str(tmp_path)}
    lines = "\n".join([*(f"{name} = {value!r}" for name, value in values.items()), LINES])
    ran = served_program.python(lines)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "a depthwise convolution for 2 batch norms" in found["sentence"]
    predicted = re.search(r"([+-][\d.]+) dB predicted", found["sentence"])
    assert predicted is not None, found["sentence"]
    before_db, after_db = found["lowest"]
    assert after_db - before_db > gain_db
    assert after_db - before_db == pytest.approx(float(predicted[1]), abs=3)
    assert found["targets"] == ["aten.convolution.default"]
    assert not {"introduced", "biased"} & {*found["verdicts"]}
