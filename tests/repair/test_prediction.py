"""The prediction of a gain from an error budget: with the numbers of MiniLM, and for any budget."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.records import ErrorShare
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.prediction import energies, gain_db

CAUSES: tuple[Cause, ...] = ("weights", "clipping", "resolution", "device")


def share(cause: Cause, value: float | None, operator: str | None = None, output_index: int = 0) -> ErrorShare:
    return ErrorShare(
        output_index=output_index, output="out", cause=cause, operator=operator, operator_index=None,
        module_path=None, share=value, share_error=0.0, alone_snr_db=None, without_snr_db=None, sample=1,
    )  # fmt: skip


@st.composite
def budgets(draw: Any) -> list[ErrorShare]:
    """Return a budget of some operators, with totals that may add up to more or less than 1."""
    shares: list[ErrorShare] = []
    energy = st.floats(1e-6, 2.0)
    for cause in CAUSES:
        operators = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4))
        rows = [share(cause, draw(energy), operator) for operator in operators]
        shares += [share(cause, draw(energy) if rows else 0.0), *rows]
    return [*shares, share("graph", draw(energy)), share("unexplained", draw(st.floats(1e-6, 1.0)))]


def test_errors_that_neither_cancel_nor_add_up_leave_the_sum_of_what_is_left() -> None:
    parts = energies([share("resolution", 0.75, "add"), share("weights", 0.2, "conv"), share("unexplained", 0.05)])
    assert gain_db(parts, {("resolution", "add"): 0.0}) == pytest.approx(10 * math.log10(1 / 0.25))
    assert gain_db(parts, {("resolution", "add"): 0.1}) == pytest.approx(10 * math.log10(1 / 0.325))


def test_a_single_part_that_is_left_has_its_share_however_much_it_cancelled() -> None:
    """The shares of digits_cnn with a grid that is 40 times too wide: the device undoes a part of its rounding."""
    parts = energies([share("resolution", 1.06, "head"), share("device", 0.548, "head"), share("weights", 0.065, "c")])
    without_head = {("resolution", "head"): 0.0, ("device", "head"): 0.0}
    assert gain_db(parts, without_head) == pytest.approx(10 * math.log10(1 / 0.065))


def test_errors_that_cancel_leave_less_than_their_sum() -> None:
    parts = energies([share("weights", 0.7, name) for name in "abc"])
    assert gain_db(parts, {("weights", "a"): 0.0}) == pytest.approx(10 * math.log10(1 / (1.4 - 1.1 / 3)))


def test_totals_are_no_parts() -> None:
    shares = [share("weights", 0.5), share("graph", 0.2)]
    assert energies([*shares, share("weights", None, "a"), share("device", 0.0, "a")]) == {}
    assert gain_db({}, {}) == 0.0


@given(budgets())
def test_a_change_of_nothing_gains_nothing(shares: list[ErrorShare]) -> None:
    assert gain_db(energies(shares), {}) == pytest.approx(0.0, abs=1e-6)


@given(budgets(), st.floats(1.0, 100.0))
def test_a_change_of_everything_gains_its_factor_in_db(shares: list[ErrorShare], factor: float) -> None:
    parts = energies(shares)
    assert gain_db(parts, dict.fromkeys(parts, 1 / factor)) == pytest.approx(10 * math.log10(factor), abs=1e-6)


@given(budgets(), st.data())
def test_what_is_left_is_between_a_quarter_of_its_part_and_all_of_it(shares: list[ErrorShare], data: Any) -> None:
    """Without a limit, a strong cancellation would predict a gain that no change has."""
    parts = energies(shares)
    changed = data.draw(st.lists(st.sampled_from(sorted(parts, key=str)), unique=True))
    left = sum(energy for part, energy in parts.items() if part not in changed)
    total = sum(parts.values())
    gain = gain_db(parts, dict.fromkeys(changed, 0.0))
    if left:
        assert gain <= -10 * math.log10(0.25 * left / max(total, 1.0)) + 1e-6
    if total >= 1:
        assert gain >= -10 * math.log10(max(left, 1e-10)) - 1e-6 or not changed
