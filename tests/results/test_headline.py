"""The measure that counts for an output: an SNR for floats, equal elements for integers, or what a tolerance names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load
from qnnsweep.tasks.numerics.reported import reported_output
from qnnsweep.tasks.records import Gap, OutputComparison
from qnnsweep.tasks.report.format import lowest
from qnnsweep.tasks.results.outcome import CellResult, finals, judge
from tests.sample_records import ANSWER, COMPARISON, EXPORTED

LOGITS = replace(ANSWER, sample=0, output="logits", output_index=0, gap=Gap(mse=1.0, snr_db=58.0), label=None)
LOGITS = replace(LOGITS, top1_reference=None, top1_actual=None, centred_snr_db=11.0, row_snr_db=9.0)
INDICES = replace(
    LOGITS, output="index", output_index=1, gap=Gap(mse=1.0, snr_db=-351.0), equal_elements=0.75,
    centred_snr_db=None, row_snr_db=None,
)  # fmt: skip


def of(*rows: OutputComparison) -> Any:
    return replace(COMPARISON, outputs=rows, operators=(), requantized=(), io_checks=())


def judged(rows: list[OutputComparison], *words: str, weights: str = "trained") -> tuple[str, str | None]:
    request = load(["scheme=8a8w", *words]).cells[0].request
    exported = replace(EXPORTED, model=replace(EXPORTED.model, weights=weights))
    judgement = judge(CellResult(request=request, exported=exported, comparison=of(*rows), stage="compare"))
    return judgement.outcome, judgement.reason


def test_indices_have_a_share_of_equal_elements_and_no_part_in_the_lowest_snr() -> None:
    final = finals(of(LOGITS, INDICES, replace(INDICES, sample=1, equal_elements=0.25)))
    assert (final.final_difference, final.final_snr_db, final.mean_snr_db) == ("finite", 58.0, pytest.approx(58.0))
    assert (final.equal_elements, final.centred_snr_db, final.row_snr_db) == (0.5, 11.0, 9.0)
    only = finals(of(INDICES))
    assert (only.final_difference, only.final_snr_db, only.mean_snr_db) == ("finite", None, None)
    assert lowest(only.final_difference, only.final_snr_db, only.equal_elements) == "75.0 % equal"
    exact = finals(of(replace(INDICES, status="exact", equal_elements=1.0)))
    assert (exact.final_difference, exact.equal_elements) == ("none", 1.0)


def test_a_share_of_equal_elements_can_be_judged() -> None:
    assert judged([LOGITS, INDICES]) == ("passed", None)
    limit = "+tolerance.equal_elements={8a8w:0.9}"
    reason = "share of equal elements 75.0 % is below 90 %"
    assert judged([LOGITS, INDICES], limit) == ("out_of_tolerance", reason)
    assert judged([LOGITS, INDICES], limit, weights="random") == ("passed", None)


@pytest.mark.parametrize(("measure", "snr_db"), [("snr_db", 58.0), ("centred_snr_db", 11.0), ("row_snr_db", 9.0)])
def test_the_tolerance_names_the_snr_that_counts(measure: str, snr_db: float) -> None:
    assert finals(of(LOGITS), {"logits": measure}).final_snr_db == snr_db
    outcome = "passed" if snr_db > 20 else "out_of_tolerance"
    words = f"+tolerance.headline.logits={measure}", "tolerance.final_snr_db={8a8w:20}"
    assert judged([LOGITS], *words)[0] == outcome
    undefined = replace(LOGITS, centred_snr_db=None, row_snr_db=None)
    assert finals(of(undefined), {"logits": measure}).final_snr_db == 58.0


def test_the_rows_of_a_batch_are_the_answers_of_a_classifier_and_of_any_output_that_is_named() -> None:
    rows = [replace(LOGITS, rows=4, rows_same_top1=3), replace(LOGITS, sample=1, rows=4, rows_same_top1=4)]
    assert finals(of(*rows)).row_top1_agreement == 7 / 8
    assert [finals(of(*rows), classifier=known).top1_agreement for known in (True, False)] == [7 / 8, None]
    words = "+tolerance.headline.logits=top1", "tolerance.top1_agreement={8a8w:0.9}"
    assert judged(rows, *words) == ("out_of_tolerance", "top-1 agreement 87.5 % is below 90 %")
    words = *words, "model.classifier=false"
    assert judged(rows, *words) == ("out_of_tolerance", "top-1 agreement of the rows 87.5 % is below 90 %")


def test_a_measure_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="no such measure; did you mean row_snr_db"):
        load(["+tolerance.headline.logits=row_snr"])


def test_integers_are_the_reported_output_only_if_no_other_output_has_noise() -> None:
    wrong = replace(INDICES, equal_elements=0.25)
    assert reported_output(of(wrong, LOGITS)) == LOGITS
    exact = replace(LOGITS, status="exact", gap=Gap(mse=0.0))
    assert reported_output(of(exact, wrong)) == wrong
    assert reported_output(of(exact)) is None
