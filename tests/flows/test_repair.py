"""`qnnsweep repair` with the real toolchain: a scheme that was damaged on purpose is repaired, and only there."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from prefect import flow
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from qnnsweep.conf.names import COMPILE_STAGES
from qnnsweep.conf.schemes import ChangeConfig, SchemeOverride
from tests.flows.cluster import client_settings
from tests.flows.sweep_outputs import assert_files_are_complete, assert_no_leftovers, read_table, result_of
from tests.program import Program

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from qnnsweep.tasks.records import Trial

pytestmark = pytest.mark.toolchain

DAMAGE = {"input_1": {"quant_dtype": "8a4w"}, "input_3": {"range": "[0,1.4]"}, "res": {"range": "[-400,400]"}}
"""4-bit weights of a convolution, half of the range of a relu, and 40 times the range of the last layer."""
OVERRIDES = ",".join(
    "{" + ",".join([f"node:{node}", *(f"{key}:{value}" for key, value in settings.items())]) + "}"
    for node, settings in DAMAGE.items()
)
MODEL = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.evaluation.count=20"]
REPAIR = ["repair", "--json", *MODEL, "certificate.samples=30"]
TIMES = {"run_id"}
REPAIRED = {"name": "8a8w_repaired", "precision": "quantized", "quant_dtype": "8a8w"}
"""The file of the undamaged scheme."""


def rows(artifacts: Path, table: str, run_id: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_table(artifacts, table, run_id)]


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repair")


@pytest.fixture(scope="module")
def undamaged_db(program: Program, artifacts: Path) -> float:
    """The lowest SNR of the undamaged program over the samples of the search.

    It is that of the scheme after the only step of a repair, which calibrates with all samples instead of one.
    """
    words = ("scheme.calibration_samples=1", "target.final_snr_db=200", "budget.compilations=2")
    impossible = program.run(*REPAIR, *words, f"artifacts={artifacts}")
    assert impossible.returncode == 1, impossible.stderr
    result = result_of(impossible)
    assert result["reason"] == (
        f"budget.compilations=2 is used up; final SNR {result['after_snr_db']:.1f} dB is below 200 dB"
    )
    (change,) = result["changes"]
    assert (result["reached"], change.partition(" for ")[0]) == (False, "128 calibration samples")
    assert result["after_snr_db"] > result["before_snr_db"] + 3
    assert yaml.safe_load(Path(result["scheme_file"]).read_text()) == REPAIRED, "the best scheme is written"
    return result["after_snr_db"]


@pytest.mark.slow
def test_damage_is_named_undone_and_certified_and_a_killed_repair_continues(
    program: Program, artifacts: Path, undamaged_db: float
) -> None:
    command = [
        *REPAIR, f"scheme.overrides=[{OVERRIDES}]", f"target.final_snr_db={undamaged_db - 1:.3f}",
        "budget.compilations=8", f"artifacts={artifacts}",
    ]  # fmt: skip
    with program.start(*command) as process:
        wait_for_step(process, 1)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
    ran = program.run(*command)
    assert ran.returncode == 0, ran.stderr
    result = result_of(ran)
    steps = rows(artifacts, "repair", result["run_id"])
    # Exactly the three damaged layers are changed, and each change is accepted at once.
    assert [step["accepted"] for step in steps] == [True] * 4
    assert {step["operators"][0]: step["candidate"].partition(" for ")[0] for step in steps[1:]} == {
        "aten_convolution_default": "the scheme's weights",
        "aten_relu_default": "the calibrated range",
        "aten_linear_default": "the calibrated range",
    }
    assert result["after_snr_db"] == pytest.approx(undamaged_db, abs=1e-9), "the scheme is the undamaged one again"
    assert result["compilations"] == 4
    distances_db = [abs(step["predicted_db"] - step["measured_db"]) for step in steps[1:]]
    assert max(distances_db) < 2, [(step["predicted_db"], step["measured_db"]) for step in steps[1:]]
    certificate = rows(artifacts, "certificate", result["run_id"])
    assert [(row["side"], row["certificate_samples"], row["left_out"]) for row in certificate] == [
        ("before", 30, 0),
        ("after", 30, 0),
    ]
    assert certificate[1]["mean_snr_db_low"] > certificate[0]["mean_snr_db_high"]
    assert yaml.safe_load(Path(result["scheme_file"]).read_text()) == REPAIRED
    cells = read_table(artifacts, "cells", result["run_id"])
    assert [cell["scheme"] for cell in cells] == ["8a8w", "8a8w step 1", "8a8w step 2", "8a8w step 3"]
    assert {(cell["verb"], cell["samples"], cell["outcome"]) for cell in cells[1:]} == {("repair", 20, "passed")}
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)
    # The same command again compiles nothing, and ends with the same rows.
    again = result_of(program.run(*command))
    assert rows(artifacts, "repair", again["run_id"]) == steps
    assert rows(artifacts, "certificate", again["run_id"]) == certificate
    facts = json.loads((artifacts / "runs" / again["run_id"] / "run.json").read_text())
    assert facts["toolchain_calls"] == 0


@pytest.mark.slow
def test_a_program_gets_the_best_accuracy_under_a_mean_number_of_bits(program: Program, artifacts: Path) -> None:
    words = ("target.effective_bits=6", "budget.compilations=3", f"artifacts={artifacts}")
    ran = program.run(*REPAIR, *words)
    assert ran.returncode == 0, ran.stderr
    result = result_of(ran)
    assert (result["reached"], result["reason"].startswith("the target is reached, and ")) == (True, True)
    before, first, *_ = rows(artifacts, "repair", result["run_id"])
    assert before["effective_bits"] == 8.0
    assert (first["candidate"].partition(" for ")[0], first["why"]) == (
        "other bits per weight",
        "the program becomes smaller",
    )
    assert first["effective_bits"] <= 6.0
    assert first["size_bytes"] <= before["size_bytes"], "HTP pads: sizes are multiples of 4 KiB"
    assert first["predicted_db"] == pytest.approx(first["measured_db"], abs=2)
    # The recipe can be swept: its program is the repaired one.
    after = [row for row in rows(artifacts, "repair", result["run_id"]) if row["accepted"]][-1]
    swept = program.run("run", "--json", "model=digits_cnn", f"scheme={result['scheme_file']}", *MODEL[2:], words[2])
    (cell,) = read_table(artifacts, "cells", result_of(swept)["run_id"])
    assert cell["pte_bytes"] == after["size_bytes"]


@pytest.mark.slow
def test_the_scores_of_a_detector_vary_again_although_the_target_was_met_before(
    program: Program, tmp_path: Path
) -> None:
    shutil.copy(Path(__file__).parents[1] / "toolchain" / "output_models.py", tmp_path)
    sources = {
        split: {"source": "output_models:samples", "arguments": {"seed": seed}, "count": count}
        for split, seed, count in (("calibration", 1, 16), ("evaluation", 2, 8))
    }
    inputs = [{"name": "x", "shape": [1, 3, 32, 32]}]
    network = {"factory": "output_models:model", "arguments": {"kind": "Detector"}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "detector.yaml").write_text(
        yaml.safe_dump({"name": "detector", "inputs": inputs, **network, **sources})
    )
    words = [f"--config-dir={tmp_path}", "model=detector", *MODEL[1:3], f"artifacts={tmp_path / 'artifacts'}"]
    ran = program.run("repair", "--json", *words, "target.final_snr_db=20", "certificate.samples=8")
    assert ran.returncode == 0, ran.stderr
    result = result_of(ran)
    assert result["before_snr_db"] > 20, "the boxes hide the scores"
    *_, last = read_table(tmp_path / "artifacts", "repair", result["run_id"])
    assert (last["accepted"], last["why"]) == (True, "cured: a part of output output is constant")
    probed = read_table(tmp_path / "artifacts", "probe", result["run_id"])
    of_parts = {
        row["scheme"]: (row["status"], row["of_the_scheme"])
        for row in probed
        if row["mistake"].endswith(" is constant")
    }
    assert (of_parts["8a8w"], of_parts[f"8a8w step {last['step']}"]) == (("failed", True), ("passed", False))


def wait_for_step(process: subprocess.Popen[str], number: int) -> None:
    """Wait until the program has printed the line of this step on stderr."""
    assert process.stderr is not None
    deadline = time.monotonic() + 500
    for line in process.stderr:
        if line.startswith(f"step {number} "):
            return
        assert time.monotonic() < deadline
    raise AssertionError(f"the program has ended before step {number}")


@pytest.mark.slow
@pytest.mark.night
def test_a_language_model_is_repaired_in_both_methods_and_certified_with_unseen_sequences(
    program: Program, tmp_path: Path
) -> None:
    words = ["model=tiny_llama", "scheme=8a8w", "soc=SM8650", "model.evaluation.count=8", "certificate.samples=8"]
    target = ["target.final_snr_db=13", "budget.compilations=2", f"artifacts={tmp_path}"]
    ran = program.run("repair", "--json", *words, *target)
    assert ran.returncode == 0, ran.stderr
    result = result_of(ran)
    assert (result["reached"], result["compilations"]) == (True, 2)
    assert result["changes"] == ["a narrower fixed range for 2 additions (layers.0.attention and 1 more)"]
    overrides = yaml.safe_load(Path(result["scheme_file"]).read_text())["overrides"]
    assert [sorted(override) for override in overrides] == [["node", "range"]] * 2, "both methods have the nodes"
    steps = read_table(tmp_path, "repair", result["run_id"])
    assert min(steps[1]["measured_db"], steps[1]["predicted_db"]) > 6
    grids = [row for row in read_table(tmp_path, "audit", result["run_id"]) if row["check"] == "grid of a state"]
    assert [row["status"] for row in grids] == ["met"] * 16, "four states of two links, before and after"
    certificate = read_table(tmp_path, "certificate", result["run_id"])
    assert [(row["side"], row["certificate_samples"]) for row in certificate] == [("before", 8), ("after", 8)]
    assert certificate[1]["final_snr_db"] > certificate[0]["final_snr_db"] + 1


def test_a_scheme_that_one_soc_cannot_run_is_compiled_for_none(resources: Resources) -> None:
    from qnnsweep.conf.repair_plan import planned
    from qnnsweep.flows.repair import measured
    from qnnsweep.flows.session import Session

    calls = resources.count_calls(COMPILE_STAGES)
    plan = planned(["model=digits_cnn", "scheme=8a8w", "soc=SM8650,SM8450", "target.final_snr_db=30"], [])
    finer = replace(plan.cells[0].request.scheme, overrides=[SchemeOverride(node="res", quant_dtype="16a16w")])
    v73 = "16-bit by 16-bit and 2-bit weights need Hexagon v73"
    cells = measured(Session(plan, (), resources=resources), finer)
    reasons = {cell.request.soc.name: cell.impossible for cell in cells}
    assert (reasons["SM8450"] or "").startswith(v73)
    assert reasons["SM8650"] == f"not compiled, because it is impossible on SM8450: {reasons['SM8450']}"
    assert resources.count_calls(COMPILE_STAGES) == calls


def test_after_a_change_that_failed_others_are_tried(resources: Resources, prefect_api: httpx.Client) -> None:
    from qnnsweep.conf.repair_plan import planned
    from qnnsweep.flows.repair import measured
    from qnnsweep.flows.session import Session
    from qnnsweep.tasks.results.repair_search import Aim

    words = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "target.final_snr_db=90", "model.evaluation.count=8"]
    plan = planned([*words, "model.calibration.count=32", "certificate.samples=1"], [])
    session, request = Session(plan, (), resources=resources), plan.cells[0].request

    @flow(validate_parameters=False)
    def tried(failed: Sequence[Trial]) -> list[Trial]:
        changes = [
            ChangeConfig(
                cause=trial.cause,
                change=trial.change,
                operators=[*trial.operators],
                scheme=replace(request.scheme, name="failed"),
                has_failed=True,
            )
            for trial in failed
        ]
        (cell,) = measured(session, request.scheme, Aim(target=request.target, measured=changes))
        assert cell.cures is not None
        return [*cell.cures.trials]

    with temporary_settings(client_settings(prefect_api) | {PREFECT_LOGGING_TO_API_ENABLED: False}):
        first = tried([])
        others = tried(first)
    assert first
    assert others
    keys = {(trial.cause, trial.change) for trial in first}
    operators = {name for trial in first for name in trial.operators}
    assert all((new.cause, new.change) not in keys or operators.isdisjoint(new.operators) for new in others)


WRONG = {
    "soc=SM8650": "target: a repair needs a target, such as target.final_snr_db=30",
    "target.final_snr_db=30 scheme=8a8w,16a8w": "scheme: a repair has only one value of this key; sweep soc instead",
    "target.size_kib=64 model=tiny_llama": "target.size_kib=64: the bits of the weights are searched for models with "
    "one method and without states alone",
    "target.mean_snr_db=30 model=tiny_gru": "target.mean_snr_db=30.0: a mean or a quantile needs samples that do not "
    "depend on each other, and the steps of a sequence do; use target.final_snr_db or target.top1_agreement",
    "target.final_snr_db=30 scheme=fp16": "scheme=fp16: only a quantized scheme can be repaired",
    "target.final_snr_db=30 measure.replay=false": "measure: measure.dump_operators, measure.replay and measure.budget "
    "must be true: the candidates come from the error budget",
    "target.final_snr_db=30 budget.cycles_ratio=1": "budget.cycles_ratio: needs measure.profile_level=2, which counts "
    "the cycles",
    "target.top1_agreement=2": "target.top1_agreement=2.0: at most 1",
    "target.metric=mse": "target.metric=mse: needs a limit of its mean: target.metric_at_least or "
    "target.metric_at_most",
    "target.metric_at_most=1": "target.metric_at_most=1.0: a limit of target.metric, which is not given",
    "target.metric=mse target.metric_at_least=2 target.metric_at_most=1": "target.metric_at_least=2.0: is more than "
    "target.metric_at_most=1",
    "target.metric=nowhere:f target.metric_at_least=2": "target.metric=nowhere:f: there is no module nowhere; modules "
    "in a --config-dir can be imported",
}


@pytest.mark.parametrize(("overrides", "line"), WRONG.items())
def test_a_wrong_request_is_one_line(program: Program, tmp_path: Path, overrides: str, line: str) -> None:
    model = [] if "model=" in overrides else ["model=digits_cnn"]
    ran = program.run("repair", *model, f"artifacts={tmp_path}", *overrides.split())
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {line}\n")
