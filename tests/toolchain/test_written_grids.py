"""HTP's kernels that write another grid: the design has the device's error, and the cure gives what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

LINES = """
import json, sys
sys.path.insert(0, TESTS)
import qnnsweep
from written_models import MODELS, samples
options = {"scheme": SCHEME, "soc": SOC, "artifacts": FOLDER, "progress": False}
if KIND == "TwoDelegates":
    options["overrides"] = ["scheme.overrides=[{node: relu, precision: cpu}]"]
before = qnnsweep.debug(MODELS[KIND](), samples(KIND), **options)
rows = before.outputs
lowest = {rung: rows[rows.rung == rung].snr_db.min() for rung in ("designed", "device")}
repair = before.repair(overrides=["target.final_snr_db=90", "budget.compilations=2"], progress=False)
steps = repair.steps[repair.steps.step == 1]
gains = [float(steps[name].iloc[0]) for name in ("predicted_db", "measured_db")]
print(json.dumps({"sentence": before.sentence, "lowest": lowest, "gains": gains}))
"""


@pytest.mark.parametrize(
    ("kind", "scheme", "soc", "below_db", "gain_db"),
    [
        ("ManyKeys", "8a8w", "SM8650", 30, 10),
        ("MaskedMean", "8a8w", "SM8750", 1, 20),
        ("TwoDelegates", "8a8w", "SM8650", 1, 30),
        pytest.param("FusedAttention", "8a8w", "SM8350", 30, 10, marks=pytest.mark.night),
        pytest.param("MaskedMean", "16a8w", "SM8550", 1, 40, marks=pytest.mark.night),
    ],
)
def test_it_is_predicted_named_and_cured(
    kind: str, scheme: str, soc: str, below_db: float, gain_db: float, served_program: Program, tmp_path: Path
) -> None:
    values = {"TESTS": str(Path(__file__).parent), "KIND": kind, "SCHEME": scheme, "SOC": soc, "FOLDER": str(tmp_path)}
    ran = served_program.python("\n".join([*(f"{name} = {value!r}" for name, value in values.items()), LINES]))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["lowest"]["device"] < below_db
    assert found["lowest"]["designed"] == pytest.approx(found["lowest"]["device"], abs=0.5)
    assert "a range that the device's kernel holds" in found["sentence"]
    predicted, measured = found["gains"]
    assert measured > gain_db
    assert predicted == pytest.approx(measured, abs=3)
