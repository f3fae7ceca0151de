"""The verdicts on operators under a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.load import load
from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.numerics.grid import GridUse
from qnnsweep.tasks.numerics.introduced import Introduced
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.numerics.steps import StepCounts
from qnnsweep.tasks.numerics.verdict import has_own_error, introduces, is_biased, limits, verdict
from qnnsweep.tasks.records import Gap
from qnnsweep.tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES, OperatorStatus, Verdict

LIMITED = OperatorTolerance(
    snr_db=40.0, rms_steps=1.5, steps=3.0, elements=0.1, differing=0.1, mean_steps=0.45, gain=0.05
)
SNR = OperatorTolerance(snr_db=40.0)
NONE = OperatorTolerance()


def gap(snr_db: float | None, max_abs: float | None = 1.0, mse: float = 1.0) -> Gap:
    return Gap(mse=mse, mean_abs=1.0, max_abs=max_abs, snr_db=snr_db, cosine=0.5)


EXACT = Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, snr_db=None, cosine=1.0)


def introduced(snr_db: float | None, steps: Sequence[float] | None = None, **facts: Any) -> Introduced:
    """Return an error with this SNR. `steps`: the signed errors of the elements; None for floats without a grid."""
    if steps is None:
        return Introduced(gap=gap(snr_db), **{"elements": 1, **facts})
    errors = np.array(steps, float)
    return Introduced(
        gap=gap(snr_db),
        elements=errors.size,
        steps=StepCounts.of(errors),
        max_steps=float(np.abs(errors).max()),
        rms_steps=float(np.sqrt(np.mean(errors**2))),
        mean_steps=float(errors.mean()),
        mean_steps_error=float(errors.std() / np.sqrt(errors.size)),
        **facts,
    )


NOTHING = replace(introduced(None, [0.0]), gap=EXACT)


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
        # The SNR, without a grid.
        (introduced(39.9), LIMITED, True),
        (introduced(40.0), LIMITED, False),
        (introduced(None), LIMITED, True),  # the right value is all zeros
        (replace(introduced(None), gap=gap(None, max_abs=None)), LIMITED, True),  # an error that float64 cannot hold
        # The SNR, with a grid: not while the root mean square is within 1.5 steps.
        (introduced(39.9, [2] * 10), LIMITED, True),
        (introduced(39.9, [1] * 10), LIMITED, False),
        (introduced(None, [2] * 10), LIMITED, True),
        (introduced(None, [1] * 10), LIMITED, False),
        (introduced(39.9, [1] * 10), SNR, True),
        # The worst channel may be 15 dB below the limit.
        (introduced(60.0, channel_snr_db=24.9), LIMITED, True),
        (introduced(60.0, channel_snr_db=25.0), LIMITED, False),
        (introduced(60.0, [1] * 10, channel_snr_db=24.9), LIMITED, False),
        # The steps of single elements: a tenth of the elements may be beyond the limit.
        (introduced(None, [4, 4, *[0] * 8]), LIMITED, True),
        (introduced(None, [4, *[0] * 9]), LIMITED, False),
        (introduced(None, [3] * 5 + [0] * 20), LIMITED, False),
        (introduced(-9.0, [4] * 10), OperatorTolerance(steps=3.0), True),
        (introduced(-9.0, [3] * 10), OperatorTolerance(steps=3.0), False),
        # Errors that are 40 dB below the value's root mean square are accepted: with 45 dB, 1.78 times their own.
        (introduced(45.0, [9] * 10), LIMITED, False),
        (introduced(45.0, [100] * 3 + [0] * 17), LIMITED, True),
        (introduced(45.0, [100] * 2 + [0] * 18), LIMITED, False),
        # Values that are not floating point are judged by the share of wrong elements.
        (introduced(90.0, [1] * 2 + [0] * 8, differing=2), LIMITED, True),
        (introduced(-9.0, [9] + [0] * 9, differing=1), LIMITED, False),
        (introduced(90.0, [1] + [0] * 9, differing=1), replace(LIMITED, differing=0), True),
        (introduced(90.0, [1] * 10, differing=10), OperatorTolerance(steps=1.0), False),
        (introduced(90.0, [2] * 10, differing=10), OperatorTolerance(steps=1.0), True),
        (
            introduced(-9.0, [9] * 10, differing=0),
            replace(LIMITED, differing=0),
            False,
        ),  # other indices, equal elements
        (introduced(-9.0, [9] * 10, differing=10), SNR, False),
        # Infinities and NaNs are always introduced.
        (replace(NOTHING, nonfinite=1), LIMITED, True),
        (replace(NOTHING, nonfinite=1), NONE, True),
        # Nothing to judge.
        (introduced(-9.0, [99.0] * 10), NONE, False),
        (NOTHING, LIMITED, False),
        (NOTHING, OperatorTolerance(snr_db=400.0), False),
        (Introduced(gap=Gap()), LIMITED, False),  # no elements, or no used ones
    ],
)
def test_an_operator_introduces_an_error_beyond_one_of_its_limits(
    introduced: Introduced, allowed: OperatorTolerance, introducing: bool
) -> None:
    assert introduces(introduced, allowed) is introducing


@pytest.mark.parametrize(
    ("introduced", "allowed", "biased"),
    [
        # 0.5 - 3 / sqrt(n) is above 0.45 for more than 3600 elements.
        (introduced(60.0, [0, 1] * 2000), LIMITED, True),
        (introduced(60.0, [0, -1] * 2000), LIMITED, True),
        (introduced(60.0, [0, 1] * 1000), LIMITED, False),
        (introduced(60.0, [1, -1] * 2000), LIMITED, False),
        (introduced(60.0, [1] * 30), LIMITED, True),
        (introduced(60.0, [1] * 29), LIMITED, False),
        (introduced(60.0, [1] * 30), NONE, False),
        (introduced(60.0, gain=1.06, gain_error=0.003), LIMITED, True),
        (introduced(60.0, gain=0.94, gain_error=0.003), LIMITED, True),
        (introduced(60.0, gain=1.06, gain_error=0.004), LIMITED, False),
        (introduced(60.0, gain=1.06), LIMITED, False),
        (introduced(60.0, gain=1.06, gain_error=0.003), NONE, False),
        (introduced(60.0, [1] * 30, differing=3), LIMITED, False),  # the mean of wrong booleans or indices says nothing
        (NOTHING, LIMITED, False),
    ],
)
def test_an_operator_is_biased_if_its_mean_error_or_its_gain_is_off_by_three_standard_errors(
    introduced: Introduced, allowed: OperatorTolerance, biased: bool
) -> None:
    assert is_biased(introduced, allowed) is biased
    assert has_own_error(introduced, allowed) is (biased or introduces(introduced, allowed))


STEPS = st.lists(st.floats(-1000, 1000), min_size=1, max_size=20)
INTRODUCED = st.builds(
    introduced,
    st.none() | st.floats(-50, 400),
    st.none() | STEPS,
    nonfinite=st.integers(0, 1),
    differing=st.none() | st.integers(0, 20),
    channel_snr_db=st.none() | st.floats(-50, 400),
)
TOLERANCES = st.builds(
    OperatorTolerance,
    snr_db=st.floats(-50, 400),
    rms_steps=st.floats(0, 100),
    steps=st.floats(0, 1000),
    elements=st.floats(0, 0.5),
    differing=st.floats(0, 0.5),
)


@given(INTRODUCED, TOLERANCES, st.floats(0, 100))
def test_a_wider_limit_lets_no_further_operator_introduce_error(
    introduced: Introduced, allowed: OperatorTolerance, more: float
) -> None:
    for wide in (
        replace(allowed, snr_db=(allowed.snr_db or 0) - more),
        replace(allowed, rms_steps=(allowed.rms_steps or 0) + more),
        replace(allowed, steps=(allowed.steps or 0) + more),
        replace(allowed, elements=allowed.elements + more / 200),
        replace(allowed, differing=(allowed.differing or 0) + more / 200),
        replace(allowed, steps=None),
        OperatorTolerance(),
    ):
        assert introduces(introduced, allowed) >= introduces(introduced, wide)


def replayed(
    introduced: Introduced = NOTHING, inherited: Gap = EXACT, rounding: Gap | None = None, **facts: Any
) -> Replayed:
    used = (
        None
        if rounding is None
        else GridUse(
            gap=rounding, clipped_elements=0, codes_used=2, range_used=0.5, least=-0.5, largest=0.5, needed=(-0.5, 0.5)
        )
    )
    return Replayed(introduced=introduced, inherited=inherited, grid_use=used, **facts)


BEYOND = introduced(30.0, [4.0] * 10)
SHIFTED = introduced(60.0, [1.0] * 100)
WRONG = introduced(30.0, [1.0] * 10, differing=10)
RIGHT = introduced(30.0, [0.0] * 10, differing=0)


@pytest.mark.parametrize(
    ("status", "total", "replayed", "expected"),
    [
        ("exact", EXACT, replayed(), "exact"),
        ("exact", EXACT, None, "exact"),
        ("masked", EXACT, replayed(), "exact"),
        ("masked", Gap(), replayed(), "exact"),  # every element is unused
        ("masked", EXACT, replayed(RIGHT), "exact"),
        ("compared", gap(60.0), replayed(), "within_grid"),
        ("masked", gap(60.0), replayed(), "within_grid"),
        ("compared", gap(60.0), replayed(introduced(50.0)), "within_grid"),
        ("compared", gap(60.0), replayed(BEYOND), "introduced"),  # on other inputs than the reference's own run
        ("compared", gap(20.0), replayed(BEYOND), "introduced"),
        ("masked", gap(20.0), replayed(BEYOND), "introduced"),
        ("compared", gap(60.0), replayed(SHIFTED), "biased"),
        ("compared", gap(20.0), replayed(SHIFTED, inherited=gap(20.0)), "biased"),
        # An error that is not in the total error is none, and so is one that all readers contradict.
        ("compared", gap(60.0), replayed(BEYOND, felt=False), "within_grid"),
        ("compared", gap(60.0), replayed(SHIFTED, felt=False), "within_grid"),
        ("compared", gap(20.0), replayed(BEYOND, contradicted=True), "contradicted"),
        # Beyond the tolerance, and right for its own inputs: the larger of the two other parts decides.
        ("compared", gap(20.0), replayed(inherited=gap(20.0)), "inherited"),
        ("compared", gap(20.0), replayed(inherited=gap(20.0, mse=3.0), rounding=gap(20.0, mse=2.0)), "inherited"),
        ("compared", gap(20.0), replayed(inherited=gap(20.0, mse=2.0), rounding=gap(20.0, mse=3.0)), "grid"),
        ("compared", gap(39.0), replayed(inherited=gap(41.0, mse=3.0), rounding=gap(41.0, mse=2.0)), "grid"),
        ("compared", gap(20.0), replayed(inherited=EXACT, rounding=gap(20.0)), "grid"),
        ("compared", gap(None), replayed(inherited=gap(None)), "inherited"),
        ("compared", gap(None, max_abs=None), replayed(inherited=gap(None, max_abs=None)), "inherited"),
        # Values that are not floating point have no tolerance for their total error.
        ("compared", gap(90.0), replayed(RIGHT, inherited=gap(90.0)), "inherited"),
        ("compared", gap(20.0), replayed(RIGHT), "within_grid"),  # other indices of equal elements, on exact inputs
        ("compared", gap(90.0), replayed(WRONG), "introduced"),
        ("compared", gap(20.0), None, "blind"),
        ("nonfinite_differs", Gap(), replayed(replace(NOTHING, nonfinite=2)), "introduced"),
        ("nonfinite_differs", Gap(), replayed(), "inherited"),
        ("nonfinite_differs", Gap(), replayed(BEYOND), "introduced"),
        ("nonfinite_differs", Gap(), replayed(SHIFTED), "biased"),
        ("nonfinite_differs", Gap(), None, "blind"),
    ],
)
def test_the_verdict_names_the_cause_of_the_error(
    status: OperatorStatus, total: Gap, replayed: Replayed | None, expected: Verdict
) -> None:
    assert verdict(status, total, replayed, LIMITED) == expected


@given(st.sampled_from(sorted(set(OPERATOR_STATUSES) - COMPARED - {"nonfinite_differs"})), st.none() | INTRODUCED)
def test_an_operator_that_was_not_compared_is_blind(status: OperatorStatus, introduced: Introduced | None) -> None:
    assert verdict(status, Gap(), introduced and replayed(introduced), LIMITED) == "blind"


def test_without_a_tolerance_no_finite_error_is_introduced() -> None:
    assert verdict("compared", gap(-9.0), replayed(introduced(-9.0, [99.0])), NONE) == "within_grid"


def test_the_default_tolerance_accepts_one_step_and_not_two_of_an_operator_that_quantizes() -> None:
    tolerances = load(["scheme=8a8w"]).cells[0].request.tolerance.operators
    allowed = limits(tolerances, "8a8w", "quantized_decomposed.quantize_per_tensor.default")
    assert not introduces(introduced(90.0, [1] * 100, differing=100), allowed)
    assert introduces(introduced(90.0, [2] * 100, differing=100), allowed)
