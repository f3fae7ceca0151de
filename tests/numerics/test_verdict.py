"""The verdicts on operators under a tolerance, and the operator to examine first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.load import load
from conf.schema import OperatorTolerance
from tasks.numerics.replay import Introduced
from tasks.numerics.verdict import introduces, limits, verdict, worst_operator
from tasks.records import Gap, Operator, OperatorComparison
from tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES, OperatorStatus, Verdict

BOTH = OperatorTolerance(snr_db=40.0, steps=3.0)
SNR = OperatorTolerance(snr_db=40.0)
NONE = OperatorTolerance()


def gap(snr_db: float | None, max_abs: float = 1.0) -> Gap:
    return Gap(mse=1.0, mean_abs=1.0, max_abs=max_abs, snr_db=snr_db, cosine=0.5)


EXACT = Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, snr_db=None, cosine=1.0)


def introduced(snr_db: float | None, steps: float | None = None, **facts: Any) -> Introduced:
    return Introduced(gap=gap(snr_db), steps=steps, **facts)


NOTHING = Introduced(gap=EXACT, steps=0.0)


def test_the_most_specific_tolerance_applies() -> None:
    tolerances = {
        name: OperatorTolerance(snr_db=float(number))
        for number, name in enumerate(["8a8w", "*/aten.gelu.default", "8a8w/aten.gelu.default"])
    }

    def tolerance(scheme: str, target: str) -> float | None:
        return limits(tolerances, scheme, target).snr_db

    assert tolerance("8a8w", "aten.gelu.default") == 2
    assert tolerance("16a8w", "aten.gelu.default") == 1
    assert tolerance("8a8w", "aten.add.Tensor") == 0
    assert tolerance("8a8w", "aten.gelu") == 0
    assert tolerance("16a8w", "aten.add.Tensor") is None
    assert limits({}, "8a8w", "aten.add.Tensor") == OperatorTolerance()


def test_an_operators_tolerance_is_set_from_the_command_line() -> None:
    words = "+tolerance.operators={8a8w:{snr_db:30},*/aten.gelu.default:{snr_db:20,steps:5}}"
    asked = load(["scheme=8a8w", words]).cells[0].request.tolerance.operators
    assert limits(asked, "16a8w", "aten.gelu.default") == OperatorTolerance(snr_db=20.0, steps=5.0)
    assert limits(asked, "8a8w", "aten.add.Tensor").snr_db == 30


@pytest.mark.parametrize(
    ("introduced", "allowed", "introducing"),
    [
        (introduced(39.9, 4.0), BOTH, True),
        (introduced(39.9, 3.0), BOTH, False),  # within its steps
        (introduced(40.0, 9.0), BOTH, False),  # within its SNR
        (introduced(39.9, None), BOTH, True),  # floats have no steps: the SNR alone
        (introduced(39.9, 1.0), SNR, True),
        (introduced(-9.0, 99.0), NONE, False),
        (introduced(-9.0, 99.0), OperatorTolerance(steps=3.0), False),  # a tolerance of steps alone has no effect
        (introduced(None, 4.0), BOTH, True),  # a reference of zeros has no ratio
        (introduced(None, 3.0), BOTH, False),
        (NOTHING, BOTH, False),
        (NOTHING, OperatorTolerance(snr_db=400.0), False),
        (replace(NOTHING, nonfinite=1), BOTH, True),
        (replace(NOTHING, nonfinite=1), NONE, True),
        (Introduced(gap=Gap(), steps=0.0), BOTH, False),  # no elements, or no used ones
    ],
)
def test_an_operator_introduces_an_error_beyond_both_its_snr_and_its_steps(
    introduced: Introduced, allowed: OperatorTolerance, introducing: bool
) -> None:
    assert introduces(introduced, allowed) is introducing


SNRS = st.none() | st.floats(-50, 400)
FOUND = st.builds(introduced, SNRS, st.none() | st.floats(0, 1000), nonfinite=st.integers(0, 1))


@given(FOUND, st.floats(-50, 400), st.floats(0, 1000), st.floats(0, 100))
def test_a_wider_tolerance_lets_no_further_operator_introduce_error(
    introduced: Introduced, snr_db: float, steps: float, more: float
) -> None:
    narrow = OperatorTolerance(snr_db=snr_db, steps=steps)
    for wide in (
        OperatorTolerance(snr_db=snr_db - more, steps=steps),
        OperatorTolerance(snr_db=snr_db, steps=steps + more),
        OperatorTolerance(steps=steps),
    ):
        assert introduces(introduced, narrow) >= introduces(introduced, wide)


@pytest.mark.parametrize(
    ("status", "total", "introduced", "expected"),
    [
        ("exact", EXACT, NOTHING, "exact"),
        ("exact", EXACT, None, "exact"),
        ("compared", gap(60.0), NOTHING, "within_grid"),
        ("compared", gap(60.0), introduced(50.0), "within_grid"),
        ("compared", gap(20.0), introduced(50.0), "inherited"),
        ("compared", gap(20.0), NOTHING, "inherited"),
        ("compared", gap(20.0), introduced(30.0, 3.0), "inherited"),  # the introduced error is within the steps
        ("compared", gap(20.0), introduced(30.0, 4.0), "introduced"),
        ("compared", gap(60.0), introduced(30.0, 4.0), "introduced"),  # on other inputs than the reference's own run
        ("compared", gap(20.0), None, "blind"),
        ("compared", gap(None), NOTHING, "inherited"),
        ("masked", EXACT, NOTHING, "exact"),
        ("masked", Gap(), NOTHING, "exact"),  # every element is unused
        ("masked", gap(60.0), NOTHING, "within_grid"),
        ("masked", gap(20.0), introduced(20.0, 9.0), "introduced"),
        ("nonfinite_differs", Gap(), replace(NOTHING, nonfinite=2), "introduced"),
        ("nonfinite_differs", Gap(), NOTHING, "inherited"),
        ("nonfinite_differs", Gap(), introduced(20.0, 9.0), "introduced"),
        ("nonfinite_differs", Gap(), introduced(20.0, 3.0), "inherited"),
        ("nonfinite_differs", Gap(), None, "blind"),
    ],
)
def test_the_verdict_follows_from_the_used_elements(
    status: OperatorStatus, total: Gap, introduced: Introduced | None, expected: Verdict
) -> None:
    assert verdict(status, total, introduced, BOTH) == expected


@given(st.sampled_from(sorted(set(OPERATOR_STATUSES) - COMPARED - {"nonfinite_differs"})), st.none() | FOUND)
def test_an_operator_that_was_not_compared_is_blind(status: OperatorStatus, introduced: Introduced | None) -> None:
    assert verdict(status, Gap(), introduced, BOTH) == "blind"


def test_without_a_tolerance_no_finite_error_is_introduced() -> None:
    assert verdict("compared", gap(-9.0), introduced(-9.0, 99.0), NONE) == "within_grid"


def row(name: str, verdict: str, total: float | None = 50.0, status: str = "compared", **facts: Any) -> Any:
    operator = Operator(
        index=0, name=name, target="aten.add.Tensor", debug_handle=1, output_index=0, source_nodes=(), module_path="",
        stack_trace="", shape=(1,), dtype="float32", quantization=None, axis_order=None, subgraph=0, constant=False,
        unused=False,
    )  # fmt: skip
    introduced = OperatorComparison(operator=operator, sample=0, status=status, gap=gap(total), verdict=verdict)
    own_snr_db = facts.pop("own", None)
    return replace(introduced, introduced=gap(own_snr_db) if own_snr_db is not None else Gap(), **facts)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([], None),
        ([row("weight", "blind", None, "constant"), row("pool", "blind", None, "not_dumped")], None),
        # Total error grows with depth: the last operator has the most of it and introduced none.
        ([row("early", "introduced", 40.0, own=20.0, effect_snr_db=15.0), row("last", "inherited", 5.0)], "early"),
        # The operator with the largest effect on the final outputs, not with the largest introduced error.
        (
            [
                row("loud", "introduced", own=1.0, effect_snr_db=60.0),
                row("grave", "introduced", own=25.0, effect_snr_db=10.0),
            ],
            "grave",
        ),
        # Operators without a known effect come after those with one.
        ([row("unknown", "introduced", own=1.0), row("known", "introduced", own=25.0, effect_snr_db=80.0)], "known"),
        ([row("milder", "introduced", own=20.0), row("worse", "introduced", own=2.0)], "worse"),
        # Without a ratio, because the reference is all zeros: worse than any ratio.
        ([row("some", "introduced", own=2.0), row("no ratio", "introduced")], "no ratio"),
        ([row("infinite", "introduced", None, "nonfinite_differs"), row("worst", "inherited", 0.0)], "infinite"),
        # No operator introduces error: the one with the lowest introduced SNR.
        ([row("good", "within_grid", 5.0, own=80.0), row("less good", "within_grid", 90.0, own=50.0)], "less good"),
        ([row("moved", "inherited", 5.0), row("less good", "within_grid", 90.0, own=50.0)], "less good"),
        # Without a replay: by the total error.
        ([row("good", "blind", 50.0), row("worst", "blind", 5.0), row("exact", "exact", None, "exact")], "worst"),
        ([row("hidden", "blind", None, "shape_differs"), row("seen", "blind", 50.0)], "seen"),
    ],
)
def test_the_worst_operator_is_the_one_to_examine_first(rows: list[OperatorComparison], name: str | None) -> None:
    worst = worst_operator(rows)
    assert (worst.operator.name if worst else None) == name
    backwards = worst_operator(reversed(rows))
    assert backwards == worst
