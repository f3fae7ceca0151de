"""The oracle of a bisection: which texts are conditions, and what they say of cells of every kind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.names import DEFAULT_ORACLE
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import DeviceError, RequestError
from qnnsweep.tasks.records import Comparison
from qnnsweep.tasks.results.oracle import Judgement, introduced_snr_db, judgement, parsed_oracle
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from tests.sample_records import COMPARISON, TOOLCHAIN, every_kind, passed_cell, up_to_lower


@pytest.fixture(scope="module")
def request_() -> Request:
    return load(["tolerance=none"]).cells[0].request


def judged(text: str, cell: CellResult) -> Judgement:
    return judgement(parsed_oracle(text), rows("20261124T220000Z-aaaa", [cell], TOOLCHAIN))


def with_final(difference: str) -> Comparison:
    """Return the sample comparison with equal outputs (`exact`), or with outputs whose error is infinite."""
    outputs = [replace(row, status=difference, gap=replace(row.gap, snr_db=None)) for row in COMPARISON.outputs]
    return replace(COMPARISON, outputs=tuple(outputs))


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        (DEFAULT_ORACLE, "good", "passed"),
        ("outcome == passed", "bad", "passed"),
        ("final_snr_db<30", "good", 30.0),
        ("final_snr_db<=30", "bad", 30.0),
        ("pte_bytes>999", "bad", 1000),
        ("worst_operator!=conv", "good", "conv"),
        ("conv.introduced_snr_db<25", "bad", 20.0),
        ("conv.introduced_snr_db<15", "good", 20.0),
        ("conv.share>0.7", "bad", 0.75),
        ("view.share>0", "good", 0.0),
    ],
)
def test_a_condition_compares_one_value_of_the_cell(request_: Request, text: str, answer: str, value: object) -> None:
    assert judged(text, passed_cell(request_)) == Judgement(answer=answer, value=value)  # type: ignore[arg-type]


def test_exact_outputs_have_no_noise_and_an_infinite_error_is_the_worst(request_: Request) -> None:
    exact, infinite = (passed_cell(request_, comparison=with_final(name)) for name in ("exact", "nonfinite_differs"))
    assert judged("final_snr_db<30", exact) == Judgement(answer="good", value=math.inf)
    assert judged("final_snr_db<30", infinite) == Judgement(answer="bad", value=-math.inf)


def test_the_introduced_error_of_an_operator_is_that_of_its_worst_sample(request_: Request) -> None:
    tables = rows("20261124T220000Z-aaaa", [passed_cell(request_)], TOOLCHAIN)
    assert introduced_snr_db(tables) == {"conv": 20.0, "view": None}
    for row in tables["operators"]:
        row["introduced_mse"], row["status"] = 0.0, "compared"
    assert introduced_snr_db(tables) == {"conv": math.inf, "view": math.inf}
    tables["operators"][0]["status"] = "nonfinite_differs"
    assert introduced_snr_db(tables)["conv"] == -math.inf


def test_a_cell_that_was_not_measured_is_untestable_unless_its_outcome_is_the_answer(request_: Request) -> None:
    failed = up_to_lower(request_, "lower", RuntimeError("no context binary\nmore"))
    assert judged("final_snr_db<30", failed) == Judgement(
        answer="untestable", value=None, why="no final_snr_db: failed, no context binary"
    )
    assert judged(DEFAULT_ORACLE, failed) == Judgement(answer="bad", value="failed")
    lost = up_to_lower(request_, "deploy", DeviceError("unplugged"))
    assert judged(DEFAULT_ORACLE, lost).why == "infrastructure: unplugged"
    assert judged("absent.share>0.1", passed_cell(request_)).why == "no absent.share: passed"
    answers = [judged(DEFAULT_ORACLE, cell).answer for cell in every_kind(request_)]
    assert answers == ["good", "good", "bad", "untestable", "bad", "untestable", "bad"]


WRONG = {
    "final_snr_db 30": "write COLUMN, one of < <= > >= == !=, and a value, such as 'final_snr_db<30'",
    "final_snr<30": "no such column of the table cells; did you mean final_snr_db? one of accuracy, ",
    "conv.snr_db<30": "no such column of an operator; did you mean introduced_snr_db? one of introduced_snr_db, share",
    "final_snr_db<low": "low is no number",
    "final_snr_db<nan": "nan is no number",
    "outcome<passed": "this column is no number: compare it with == or !=",
    "outcome==good": "one of passed, out_of_tolerance, failed, impossible, infrastructure",
    "missed_limits==accuracy": "this column has several values, which cannot be compared",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_condition_is_one_line_with_the_accepted_values(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parsed_oracle(text)
    assert str(caught.value).startswith(f"--oracle={text}: {WRONG[text]}")
    assert "\n" not in str(caught.value)
