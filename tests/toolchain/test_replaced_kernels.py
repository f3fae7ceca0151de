"""Operators that HTP's kernels compute wrongly: the cure is another kernel, and gains what is predicted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

LINES = """
import json, qnnsweep
from tests.toolchain.wrong_kernels import MODELS, images
options = {"scheme": SCHEME, "soc": SOC, "artifacts": FOLDER, "progress": False}
before = qnnsweep.debug(MODELS[KIND](), images(), **options)
options["overrides"] = [f"scheme.overrides=[{OVERRIDE}]", "measure.cures=0"]
after = qnnsweep.debug(MODELS[KIND](), images(), **options)
operators = after.operators[after.operators.verdict.isin(["introduced", "biased"])]
print(json.dumps({"sentence": before.sentence, "lowest": [before.worst_snr_db, after.worst_snr_db],
    "wrong": sorted(operators.operator)}))
"""
AS_CONVOLUTION, ON_CPU = "{operator: batch_norm, as_conv2d: true}", "{operator: avg_pool2d, precision: cpu}"
POOL = "the CPU for the average pool"


@pytest.mark.parametrize(
    ("kind", "scheme", "soc", "override", "cure", "gain_db"),
    [
        ("BeforeActivation", "16a8w", "SM8650", AS_CONVOLUTION, "a depthwise convolution for 2 batch norms", 15),
        ("RoundedUp", "8a8w", "SM8750", ON_CPU, POOL, 15),
        pytest.param(
            *("BeforeActivation", "8a8w", "SM8550", AS_CONVOLUTION, "a depthwise convolution for 2 batch norms", 1),
            marks=pytest.mark.night,
        ),
        pytest.param("RoundedUp", "16a8w", "SM8350", ON_CPU, POOL, 15, marks=pytest.mark.night),
    ],
)
def test_its_cure_gains_what_is_predicted(
    kind: str, scheme: str, soc: str, override: str, cure: str, gain_db: float, served_program: Program, tmp_path: Path
) -> None:
    values = {"KIND": kind, "SCHEME": scheme, "SOC": soc, "OVERRIDE": override, "FOLDER": str(tmp_path)}
    ran = served_program.python("\n".join([*(f"{name} = {value!r}" for name, value in values.items()), LINES]))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert cure in found["sentence"]
    predicted = re.search(r"([+-][\d.]+) dB predicted", found["sentence"])
    assert predicted is not None, found["sentence"]
    before_db, after_db = found["lowest"]
    assert after_db - before_db > gain_db
    assert after_db - before_db == pytest.approx(float(predicted[1]), abs=3)
    assert found["wrong"] == []
