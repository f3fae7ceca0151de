"""What a cell's sentence says about the checks of its inputs and outputs."""

from dataclasses import replace

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records.vocabulary import ProbeStatus
from tests.results.diagnosed import cured_cell, diagnosed
from tests.sample_records import ANSWER, COMPARISON, PROBED, passed_cell


@pytest.mark.parametrize(("status", "is_said"), [("blind", True), ("passed", False)])
def test_equal_outputs_that_are_the_same_for_all_samples_are_no_success(
    status: ProbeStatus, is_said: bool, planned: Request
) -> None:
    equal = replace(ANSWER, status="exact", gap=replace(ANSWER.gap, mse=0.0, snr_db=None), previous_snr_db=None)
    outputs = tuple(replace(equal, previous_status="exact", sample=sample) for sample in (0, 1))
    check = replace(PROBED, side="output", mistake="output logits does not depend on the input", status=status)
    comparison = replace(COMPARISON, outputs=outputs, budget=(), io_checks=(check,))
    said = "In eager PyTorch, they are the same for all samples: they test nothing, look at weights and samples."
    assert (said in diagnosed(passed_cell(planned, comparison=comparison))) is is_said


@pytest.mark.parametrize("of_the_scheme", [True, False])
def test_a_mistake_that_fails_the_cell_comes_first_and_a_repair_is_promised_only_if_a_scheme_makes_it(
    of_the_scheme: bool, planned: Request
) -> None:
    wrong = replace(PROBED, status="failed", mistake="a part of output logits is constant", detail="slice 3 of axis 1")
    checks = (PROBED, replace(wrong, of_the_scheme=of_the_scheme))
    cell = cured_cell(planned, (1e-6, 1e-6), None)
    assert cell.comparison is not None
    sentence = diagnosed(replace(cell, comparison=replace(cell.comparison, io_checks=checks)))
    assert sentence.startswith("A part of output logits is constant (slice 3 of axis 1). Worst sample (b) 30.0 dB")
    assert ("Next: `qnnsweep repair " in sentence) is of_the_scheme
