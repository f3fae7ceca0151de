"""The distribution of errors in steps, against NumPy's own measures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.steps import StepCounts

STEPS = st.lists(st.integers(-40, 40) | st.integers(-(2**31), 2**31), min_size=1, max_size=60)


@given(steps=STEPS, share=st.floats(0, 1), limit=st.floats(0, 50))
def test_the_measures_are_those_of_the_elements(steps: list[int], share: float, limit: float) -> None:
    elements = np.array(steps, np.float64)
    counts, absolute = StepCounts.of(elements), np.abs(elements)
    assert counts.total == len(steps)
    assert counts.largest == absolute.max()
    assert counts.mean == pytest.approx(elements.mean(), rel=1e-12, abs=1e-6)
    assert counts.rms == pytest.approx(np.sqrt(np.mean(elements**2)), rel=1e-12)
    assert counts.quantile(share) == pytest.approx(np.quantile(absolute, share), rel=1e-9, abs=1e-6)
    assert counts.beyond(limit) == np.count_nonzero(absolute > limit)


@given(steps=st.lists(st.tuples(st.integers(-40, 40) | st.integers(-(2**31), 2**31), st.booleans()), min_size=1))
def test_elements_that_do_not_count_are_left_out(steps: list[tuple[int, bool]]) -> None:
    errors, counted = (np.array(column) for column in zip(*steps, strict=True))
    assume(counted.any())
    counts, alone = StepCounts.of(errors, counted), StepCounts.of(errors[counted])
    assert (counts.errors.tolist(), counts.elements.tolist()) == (alone.errors.tolist(), alone.elements.tolist())


@given(steps=STEPS)
def test_each_error_is_counted_once(steps: list[int]) -> None:
    counts = StepCounts.of(np.array(steps, np.float64).reshape(1, -1))
    assert dict(zip(counts.errors.tolist(), counts.elements.tolist(), strict=True)) == {
        float(error): steps.count(error) for error in steps
    }
