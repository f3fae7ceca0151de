"""Tolerances from the rows of an atlas."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.tolerances import OperatorTolerance, ToleranceConfig
from qnnsweep.tasks.numerics.verdict import limits
from qnnsweep.tasks.results.measured_tolerance import MARGIN_DB, MARGIN_STEPS, measured_tolerance

BASE = ToleranceConfig(name="default", operators={"8a8w": OperatorTolerance(snr_db=29, steps=3, mean_steps=0.45)})


def row(scheme: str, target: str, *, steps: float | None = None, snr_db: float | None = None) -> dict[str, Any]:
    measured = {"introduced_p999_steps": steps, "introduced_snr_db": snr_db}
    return {"scheme": scheme, "state": "exact", "worst_operator": target} | measured


def test_a_type_gets_the_largest_percentile_or_the_lowest_snr_and_keeps_its_other_limits() -> None:
    rows = [
        row("8a8w", "add", steps=0.6, snr_db=40.0),
        row("8a8w", "add", steps=1.2, snr_db=50.0),
        row("fp16", "exp", snr_db=61.4),
        row("fp16", "exp", snr_db=70.0),
        row("8a8w", "log", steps=900.0) | {"state": "wrong"},
    ]
    measured = measured_tolerance(rows, BASE, "mine")
    assert measured.name == "mine"
    assert measured.operators == {
        "8a8w/add": OperatorTolerance(snr_db=29, steps=2 + MARGIN_STEPS, mean_steps=0.45),
        "fp16/exp": OperatorTolerance(snr_db=55),
        "8a8w": BASE.operators["8a8w"],
    }


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1000)), min_size=1))
def test_every_measured_case_keeps_the_tolerance_of_its_type(errors: list[tuple[str, float]]) -> None:
    measured = measured_tolerance([row("8a8w", target, steps=steps) for target, steps in errors], BASE, "mine")
    for target, steps in errors:
        allowed = limits(measured.operators, "8a8w", target)
        assert allowed.steps is not None
        assert steps <= allowed.steps


def test_the_limit_of_an_snr_is_below_what_was_measured() -> None:
    measured = measured_tolerance([row("fp16", "exp", snr_db=61.4)], BASE, "mine")
    assert measured.operators["fp16/exp"].snr_db == 61 - MARGIN_DB
