"""A layer that is called twice: the device reads its bias on the grid of the first call, which is the cause `bias`."""

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
from shared_heads import SharedHead, samples
result = qnnsweep.debug(
    SharedHead(LAYER, COPIED), samples(LAYER), scheme=SCHEME, soc="SM8650", artifacts=FOLDER, progress=False
)
rows = result.outputs
lowest = {rung: rows[(rows.rung == rung) & (rows.output_index == 1)].snr_db.min() for rung in ("designed", "device")}
budget = result.budget.fillna("")
of_far = budget[(budget.operator != "") & (budget.output_index == 1)]
largest = of_far.loc[of_far.share.astype(float).idxmax()]
print(json.dumps({**lowest, "cause": largest.cause, "module": largest.module_path, "sentence": result.sentence}))
"""


def found(program: Program, folder: Path, layer: str, scheme: str, copied: bool) -> dict:
    values = {"TESTS": str(Path(__file__).parent), "LAYER": layer, "SCHEME": scheme, "COPIED": copied}
    values["FOLDER"] = str(folder)
    ran = program.python("\n".join([*(f"{name} = {value!r}" for name, value in values.items()), LINES]))
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize(("layer", "scheme"), [("conv", "8a8w"), ("conv", "16a8w"), ("linear", "8a8w")])
def test_the_design_has_the_error_of_the_device_and_the_sentence_says_bias(
    layer: str, scheme: str, served_program: Program, tmp_path: Path
) -> None:
    shared = found(served_program, tmp_path, layer, scheme, copied=False)
    assert shared["device"] < 10
    assert shared["designed"] == pytest.approx(shared["device"], abs=1)
    assert (shared["cause"], shared["module"]) == ("bias", "far")
    assert "the bias of `far` does not fit its grid" in shared["sentence"]
    assert "(one scale for the weights for the " in shared["sentence"]


def test_a_copy_of_the_layer_has_a_bias_of_its_own(served_program: Program, tmp_path: Path) -> None:
    copied = found(served_program, tmp_path, "conv", "8a8w", copied=True)
    assert copied["device"] > 30
    assert "bias" not in copied["sentence"]
