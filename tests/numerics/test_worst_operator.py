"""The operator to examine first, from the rows and the budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.tasks.numerics.verdict import WorstOperator, worst_operator
from qnnsweep.tasks.records import ErrorParts, ErrorShare, Gap, Operator, OperatorComparison
from qnnsweep.tasks.records.vocabulary import Cause


def row(
    name: str,
    verdict: str,
    total: float | None = 50.0,
    status: str = "compared",
    own_db: float | None = None,
    sample: int = 0,
) -> Any:
    operator = Operator(
        index=0, name=name, target="aten.add.Tensor", debug_handle=1, output_index=0, source_nodes=(), module_path="",
        stack_trace="", shape=(1,), dtype="float32", quantization=None, axis_order=None, subgraph=0, constant=False,
        unused=False,
    )  # fmt: skip
    facts: Any = {"status": status, "verdict": verdict}
    gap = Gap(mse=1.0, mean_abs=1.0, max_abs=1.0, snr_db=total, cosine=0.5)
    return OperatorComparison(
        operator=operator, sample=sample, gap=gap, parts=ErrorParts(introduced_snr_db=own_db), **facts
    )


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([], None),
        ([row("weight", "blind", None, "constant"), row("pool", "blind", None, "not_dumped")], None),
        # Total error grows with depth: the last operator has the most of it and introduced none.
        ([row("early", "introduced", 40.0, own_db=20.0), row("last", "inherited", 5.0)], "early"),
        ([row("milder", "introduced", own_db=20.0), row("worse", "introduced", own_db=2.0)], "worse"),
        ([row("shifted", "biased", own_db=30.0), row("good", "within_grid", own_db=20.0)], "shifted"),
        # Without a ratio, because the right value is all zeros: worse than any ratio.
        ([row("some", "introduced", own_db=2.0), row("no ratio", "introduced")], "no ratio"),
        (
            [row("infinite", "introduced", None, "nonfinite_differs"), row("worst", "introduced", own_db=-9.0)],
            "infinite",
        ),
        ([row("inherits", "inherited", None, "nonfinite_differs"), row("loud", "introduced", own_db=9.0)], "inherits"),
        ([row("wrong log", "contradicted", None, "nonfinite_differs"), row("loud", "introduced", own_db=9.0)], "loud"),
        ([row("unknown", "blind", None, "nonfinite_differs"), row("loud", "blind", 28.0)], "unknown"),
        # No operator introduces error: the one with the lowest introduced SNR.
        (
            [row("good", "within_grid", 5.0, own_db=80.0), row("less good", "within_grid", 90.0, own_db=50.0)],
            "less good",
        ),
        ([row("moved", "inherited", 5.0), row("less good", "within_grid", 90.0, own_db=50.0)], "less good"),
        # Without a replay: by the total error.
        ([row("good", "blind", 50.0), row("worst", "blind", 5.0), row("exact", "exact", None, "exact")], "worst"),
        ([row("hidden", "blind", None, "shape_differs"), row("seen", "blind", 50.0)], "seen"),
    ],
)
def test_the_worst_operator_without_a_budget_is_the_one_with_the_largest_error_of_its_own(
    rows: list[OperatorComparison], name: str | None
) -> None:
    worst = worst_operator(rows)
    assert (worst and worst.row.operator.name) == name
    assert worst_operator(rows[::-1]) == worst
    assert worst is None or (worst.cause, worst.effect_snr_db) == (None, None)


def share(
    operator: str | None, cause: Cause, share: float | None, alone: float | None = None, without: float | None = None
) -> Any:
    return ErrorShare(
        output_index=0, output="out", cause=cause, operator=operator, operator_index=0, module_path="",
        share=share, share_error=0.0, alone_snr_db=alone, without_snr_db=without, sample=1,
    )  # fmt: skip


ROWS = [
    row("loud", "introduced", own_db=1.0),
    row("grave", "grid", own_db=80.0),
    row("grave", "grid", own_db=70.0, sample=1),
    row("mild", "introduced", own_db=25.0),
]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # The effect on a final output decides, and not the largest introduced error.
        (
            [
                share(None, "clipping", 0.7),
                share(None, "graph", 2.0),
                share("grave", "clipping", 0.6, 20.0),
                share("loud", "device", 0.1, 30.0),
            ],
            WorstOperator(row=ROWS[2], cause="clipping", effect_snr_db=20.0),
        ),
        # The first operator of a budget is the one without which most is gone. Alone, another may have more effect.
        (
            [share("mild", "weights", 0.2, 28.0), share("grave", "clipping", 0.6, 20.0)],
            WorstOperator(row=ROWS[3], cause="weights", effect_snr_db=28.0),
        ),
        # Two operators with the same error: without one of them, nothing is gone.
        (
            [share("mild", "weights", 0.02, 37.0, without=20.1), share("grave", "clipping", 0.9, 20.5, without=20.0)],
            WorstOperator(row=ROWS[2], cause="clipping", effect_snr_db=20.5),
        ),
        # Errors that nearly cancel: alone, the first one is small, and without it much is gone.
        (
            [share("mild", "weights", 0.01, 40.0, without=26.0), share("grave", "clipping", 0.9, 20.5, without=21.0)],
            WorstOperator(row=ROWS[3], cause="weights", effect_snr_db=40.0),
        ),
        # A model's input is no operator.
        (
            [share("x", "resolution", 0.9, 20.0), share("mild", "device", 0.1, 30.0)],
            WorstOperator(row=ROWS[3], cause="device", effect_snr_db=30.0),
        ),
        # An output whose error is zero, or not finite, has no shares.
        ([share(None, "device", None), share(None, "unexplained", None)], WorstOperator(row=ROWS[0])),
    ],
)
def test_the_worst_operator_is_the_first_one_of_the_budget(budget: list[ErrorShare], expected: WorstOperator) -> None:
    assert worst_operator(ROWS, budget) == expected


def test_an_operator_that_introduces_nans_is_the_worst_whatever_the_budget() -> None:
    infinite = row("infinite", "introduced", None, "nonfinite_differs")
    assert worst_operator([*ROWS, infinite], [share("grave", "clipping", 0.6, 20.0)]) == WorstOperator(row=infinite)


def test_an_operator_with_wrong_integers_comes_before_an_effect_that_is_smaller_than_the_unexplained_share() -> None:
    wrong = row("indices", "introduced")
    wrong = replace(wrong, parts=ErrorParts(introduced_differing=3))
    largest = share("grave", "clipping", 0.3, 20.0)
    expected = WorstOperator(row=wrong, cause="device")
    assert worst_operator([*ROWS, wrong], [largest, share(None, "unexplained", 0.6)]) == expected
    explained = worst_operator([*ROWS, wrong], [largest, share(None, "unexplained", 0.2)])
    assert explained is not None
    assert explained.row.operator.name == "grave"


def test_an_operator_that_introduces_error_comes_first_if_the_debug_program_does_not_have_most_of_the_error() -> None:
    clipping = share("mild", "clipping", 0.05, 16.0)
    expected = WorstOperator(row=ROWS[0], cause="device")
    assert worst_operator(ROWS, [share(None, "observer", 0.99), clipping]) == expected
    assert worst_operator(ROWS, [share(None, "observer", 0.04), clipping]) == WorstOperator(
        row=ROWS[3], cause="clipping", effect_snr_db=16.0
    )


def test_every_operator_is_followed_to_the_outputs_however_many_introduce_error() -> None:
    rows = [row(f"operator {number}", "introduced", own_db=10.0 + number) for number in range(17)]
    numbers = [16, *range(16)]
    shares = [share(f"operator {number}", "device", 0.01, 20.0 if number == 16 else 37.0) for number in numbers]
    assert worst_operator(rows, shares) == WorstOperator(row=rows[16], cause="device", effect_snr_db=20.0)


def test_the_smallest_introduced_ratio_of_all_samples_is_shown() -> None:
    worst = worst_operator([*ROWS, row("grave", "introduced", sample=2)], [share("grave", "clipping", 0.6, 20.0)])
    assert worst is not None
    # The operator's right value is all zeros, and the device's value is not.
    assert (worst.row.sample, worst.row.parts.introduced_snr_db) == (2, None)
    assert math.isclose(worst.effect_snr_db or 0.0, 20.0)
