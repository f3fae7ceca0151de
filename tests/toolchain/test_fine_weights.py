"""16-bit weights: HTP's kernels hold none above 32,639, which the design knows, and a cure leaves these values out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.night, pytest.mark.toolchain]

LINES = """
import json, sys
sys.path.insert(0, TESTS)
import qnnsweep
from fine_weights import FineWeights, samples
given = FineWeights(KIND), samples(KIND)
options = {"scheme": "16a16w", "soc": SOC, "artifacts": FOLDER, "progress": False}
def lowest(result):
    rows = result.outputs
    return {rung: rows[rows.rung == rung].snr_db.min() for rung in ("designed", "device")}
before = qnnsweep.debug(*given, **options)
override = "scheme.overrides=[{node: '*', fit_weights: true}]"
after = qnnsweep.debug(*given, **options, overrides=[override, "measure.cures=0"])
print(json.dumps({"sentence": before.sentence, "before": lowest(before), "after": lowest(after)}))
"""


@pytest.mark.parametrize(
    ("kind", "soc"), [("linear", "SM8550"), ("conv", "SM8750"), ("depthwise", "SM8650"), ("transposed", "SM8650")]
)
def test_they_saturate_in_the_design_as_on_the_device_and_fit_with_larger_steps(
    kind: str, soc: str, served_program: Program, tmp_path: Path
) -> None:
    values = {"TESTS": str(Path(__file__).parent), "KIND": kind, "SOC": soc, "FOLDER": str(tmp_path)}
    ran = served_program.python("\n".join([*(f"{name} = {value!r}" for name, value in values.items()), LINES]))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    before, after = found["before"], found["after"]
    assert before["device"] < 66
    assert before["designed"] == pytest.approx(before["device"], abs=0.5)
    assert after["device"] > 75
    assert "larger steps of the 16-bit weights" in found["sentence"]
    assert "weights of `layer`" in found["sentence"]
