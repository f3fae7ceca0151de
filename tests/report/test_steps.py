"""The steps of a model with states in the report."""

from __future__ import annotations

from typing import Any

from qnnsweep.tasks.report.steps import steps_of_page
from qnnsweep.tasks.report.templates import environment


def step(sample: int, number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "sample": sample,
        "sample_name": f"text {sample}",
        "step": number,
        "method": "decode",
        "method_sample": 2 * sample + number,
        "token": 4,
        "token_reference": 4,
        "text": None,
        "text_reference": None,
        "label": None,
        "margin": 0.5,
        "score_error": 0.01,
        "total_snr_db": 50.0,
        "introduced_snr_db": 55.0,
        "inherited_snr_db": 52.0,
    }
    return row | changes


STEPS = [
    step(0, 0),
    step(0, 1),
    step(1, 0, introduced_snr_db=20.0, total_snr_db=20.0, inherited_snr_db=None, token=7),
    step(1, 1, total_snr_db=None, inherited_snr_db=None),
]


def test_a_cell_without_steps_has_no_chart() -> None:
    assert steps_of_page([]) is None


def test_the_chart_is_that_of_the_sequence_with_the_lowest_snr_and_has_gaps_where_nothing_is_comparable() -> None:
    steps = steps_of_page(STEPS)
    assert steps is not None
    assert (steps["name"], steps["worst"]["step"], steps["sequences"]) == ("text 1", 0, 2)
    assert {name: len(marks) for name, marks in steps["chart"]["marks"].items()} == {
        "total_snr_db": 1,
        "inherited_snr_db": 0,
        "introduced_snr_db": 2,
    }
    assert {name: len(lines) for name, lines in steps["chart"]["lines"].items()} == {
        "total_snr_db": 0,
        "inherited_snr_db": 0,
        "introduced_snr_db": 1,
    }


def test_a_sequence_with_another_token_is_first_and_marks_it() -> None:
    steps = steps_of_page(STEPS)
    assert steps is not None
    assert [(sequence["name"], sequence["first"] and sequence["first"]["step"]) for sequence in steps["tokens"]] == [
        ("text 1", 0),
        ("text 0", None),
    ]
    template = environment().from_string('{% from "steps.html.j2" import steps_of %}{{ steps_of(cell) }}')
    page = template.render(cell={"steps": steps})
    assert "1 of 2 sequences have a token that differs." in page
    assert page.count("<mark>7</mark>") == 1
    assert "step 0, margin 0.5, error of a score 0.01" in page


def test_texts_take_the_place_of_tokens() -> None:
    steps = steps_of_page([step(0, 0, text="Once", text_reference="Twice", token=1)])
    assert steps is not None
    (sequence,) = steps["tokens"]
    assert ([word["token"] for word in sequence["device"]], sequence["eager"]) == (["Once"], ["Twice"])


def test_the_statistics_of_the_scores_are_listed_with_their_heads() -> None:
    score = {"statistic": "kl_divergence_mean", "value": 0.125, "low": 0.0625, "high": None, "tokens": 40}
    steps = steps_of_page(STEPS, [score, score | {"statistic": "probability_difference_max"}])
    assert steps is not None
    assert steps["scores"] == [("KL divergence, mean, nats", score)]
