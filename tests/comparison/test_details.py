"""The details of the errors that matter: which operators have them, and that they agree with the operators' rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.comparison.details import error_details, most_important
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.introduced import Difference, introduced_error
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import ErrorDistribution, Gap, OperatorComparison
from tests.sample_records import CONV

RIGHT = np.array([-6.0, -1.0, 2.0, 3.0], np.float32)


def details_of(error: NDArray[Any], used: NDArray[Any] | None) -> list[ErrorDistribution]:
    """Return the distribution of an operator's error, of which only some elements may be used."""
    actual = CapturedValue(elements=RIGHT + error, qparams=None)
    replayed = Replayed(
        introduced=introduced_error(Difference.between(actual, RIGHT), used), used_mask=used, errors={"device": error}
    )
    row = OperatorComparison(
        operator=replace(CONV, index=0), sample=0, status="compared", gap=Gap(), verdict="introduced"
    )
    details = error_details([row], {0: replayed}, {0: actual})
    return [detail.distribution for detail in most_important([row], [], details)]


def test_the_largest_error_is_that_of_the_row_if_a_reader_discards_elements() -> None:
    error = np.array([6.0, 0.5, 0.0, -0.25], np.float32)  # a clamp at 0 discards the first value
    (of_all,) = details_of(error, None)
    (of_used,) = details_of(error, np.array([False, True, True, True]))
    assert (of_all.largest_error, sum(of_all.histogram)) == (6.0, 4)
    assert (of_used.largest_error, sum(of_used.histogram)) == (0.5, 3)
    assert of_used.channel_errors == (0.0, 0.5, 0.0, 0.25)


def test_an_error_that_is_not_finite_at_a_discarded_element_hides_no_details() -> None:
    error = np.array([np.inf, 0.5, 0.0, -0.25], np.float32)
    assert details_of(error, None) == []
    assert [detail.largest_error for detail in details_of(error, np.array([False, True, True, True]))] == [0.5]


def test_an_operator_without_a_used_element_has_no_details() -> None:
    assert details_of(np.ones(4, np.float32), np.zeros(4, bool)) == []
