"""`qnnsweep repair` with the real toolchain."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.flows.sweep_outputs import read_table, result_of
from tests.program import Program

pytestmark = pytest.mark.toolchain

MODEL = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.calibration.count=32", "model.evaluation.count=20"]
REPAIR = ["repair", "--json", *MODEL, "certificate.samples=30"]


def test_a_target_that_is_not_reached_is_exit_code_1_with_the_reason(program: Program, tmp_path: Path) -> None:
    impossible = program.run(*REPAIR, "target.final_snr_db=200", "budget.compilations=1", f"artifacts={tmp_path}")
    assert impossible.returncode == 1, impossible.stderr
    result = result_of(impossible)
    assert result["reason"] == (
        f"budget.compilations=1 is used up; final SNR {result['after_snr_db']:.1f} dB is below 200 dB"
    )
    assert (result["reached"], result["changes"], result["size_ratio"]) == (False, [], 1.0)
    assert yaml.safe_load(Path(result["scheme_file"]).read_text()) == {
        "name": "8a8w_repaired",
        "precision": "quantized",
        "quant_dtype": "8a8w",
    }
    (step,) = read_table(tmp_path, "repair", result["run_id"])
    assert (step["step"], step["candidate"], step["accepted"], step["compilations"]) == (0, None, True, 1)
    certificate = read_table(tmp_path, "certificate", result["run_id"])
    assert [(row["side"], row["certificate_samples"], row["left_out"]) for row in certificate] == [
        ("before", 30, 0),
        ("after", 30, 0),
    ]
    (cell,) = read_table(tmp_path, "cells", result["run_id"])
    assert (cell["verb"], cell["samples"], cell["final_snr_db"]) == ("repair", 20, result["before_snr_db"])
    assert certificate[0]["final_snr_db"] != cell["final_snr_db"], "other samples"


WRONG = {
    "soc=SM8650": "target: a repair needs a target, such as target.final_snr_db=30",
    "target.final_snr_db=30 scheme=8a8w,16a8w": "scheme: a repair has only one value of this key; sweep soc instead",
    "target.final_snr_db=30 scheme=fp16": "scheme=fp16: only a quantized scheme can be repaired",
    "target.final_snr_db=30 measure.replay=false": "measure: measure.dump_operators, measure.replay and measure.budget "
    "must be true: the candidates come from the error budget",
    "target.final_snr_db=30 budget.cycles_ratio=1": "budget.cycles_ratio: needs measure.profile_level=2, which counts "
    "the cycles",
    "target.top1_agreement=2": "target.top1_agreement=2.0: a share from 0 to 1",
}


@pytest.mark.parametrize(("overrides", "line"), WRONG.items())
def test_a_wrong_request_is_one_line(program: Program, tmp_path: Path, overrides: str, line: str) -> None:
    ran = program.run("repair", "model=digits_cnn", f"artifacts={tmp_path}", *overrides.split())
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {line}\n")
