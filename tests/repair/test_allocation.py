"""The numbers of bits of the weights under a limit, against all possible choices."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.repair.allocation import Width, error_with, least_error


def widths(elements: int, error: float, number: int) -> list[Width]:
    """Return the widths of a weight that has 8 bits now. `error`: with these bits."""
    return [
        Width(
            operator=f"conv{number}",
            dtype=f"16a{bits}w",
            weight_bits=float(bits * elements),
            error=error_with(bits, 8, error),
            removed=error - error_with(bits, 8, error),
            is_now=bits == 8,
        )
        for bits in (4, 8, 16)
    ]


WEIGHTS = st.lists(st.tuples(st.integers(1, 100_000), st.floats(1e-6, 1.0)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, share=st.floats(0.2, 2.5))
def test_no_other_choice_within_the_limit_has_a_smaller_error(weights: list[tuple[int, float]], share: float) -> None:
    offered = [widths(elements, error, number) for number, (elements, error) in enumerate(weights)]
    most_bits = share * sum(8 * elements for elements, _ in weights)
    errors = [
        sum(width.error for width in choice)
        for choice in product(*offered)
        if sum(width.weight_bits for width in choice) <= most_bits
    ]
    best = least_error(offered, most_bits)
    if best is None:
        assert not errors
        return
    assert [width.operator for width in best] == [f"conv{number}" for number in range(len(weights))]
    assert sum(width.weight_bits for width in best) <= most_bits
    assert sum(width.error for width in best) <= min(errors) * (1 + 1e-4)


def test_the_error_follows_the_square_of_the_step() -> None:
    assert error_with(8, 8, 0.5) == 0.5
    assert error_with(4, 8, 0.5) == pytest.approx(0.5 * 17**2)
    assert error_with(8, 4, 0.5) == pytest.approx(0.5 / 17**2)


def test_16_bit_weights_leave_a_tenth_of_the_error_because_the_kernels_have_fewer_bits() -> None:
    assert error_with(16, 8, 0.5) == pytest.approx(0.05)
    assert error_with(16, 4, 0.5) == pytest.approx(0.05 / 17**2)
    assert error_with(4, 16, error_with(16, 4, 0.5)) == pytest.approx(0.5)


def test_without_a_weight_whose_bits_can_change_there_is_no_choice() -> None:
    assert least_error([], 100.0) is None
