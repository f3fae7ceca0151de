"""The search: it grows until the error appears, then shrinks, then tries the nearest changes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.repro.cases import case, case_of_parts

if TYPE_CHECKING:
    from qnnsweep.tasks.repro.case import Case
    from qnnsweep.tasks.repro.variant import Variant

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]  # torch and ExecuTorch warn at import

SOCS = {"SM8350": 68, "SM8650": 75, "SM8750": 79}


def search_with(
    error_of: Callable[[set[int], Variant | None], float | None], of: Case | None = None
) -> tuple[Any, list[tuple[tuple[int, ...], str | None]]]:
    """Return the result of a search in which programs have these errors, and the programs in the order of attempts."""
    from qnnsweep.tasks.repro.search import Trial, search

    attempts: list[tuple[tuple[int, ...], str | None]] = []

    def attempt(base: Variant, twin: Variant | None) -> Trial:
        assert all(base.program.outputs), "a program cannot return the tuple of the operator 0, or a constant"
        attempts.append((base.program.members, twin.description if twin else None))
        return Trial(description="", error=error_of(set(base.program.members), twin), failure=None)

    return search(of or case(), "SM8650", floats=False, socs=SOCS, attempt=attempt), attempts


BIAS = "the 32-bit bias of channel 3 is limited to ±2³⁰ (it is -2147483648)"


def test_the_operator_alone_is_tried_first_and_is_enough_if_it_has_the_error() -> None:
    result, attempts = search_with(lambda _, twin: 0.0 if twin else 8.0)
    assert attempts == [((1,), None), ((1,), BIAS)]
    assert (result.base.program.members, result.error, result.twin_error) == ((1,), 8.0, 0.0)


def test_the_program_grows_by_the_clamp_behind_the_operator_first() -> None:
    result, attempts = search_with(lambda members, twin: 8.0 if 2 in members and twin is None else 0.0)
    assert attempts == [((1,), None), ((1, 2), None), ((1, 2), "no clamp behind the operator")]
    assert result.twin is not None
    assert result.twin.program.members == (1,)


def test_a_program_that_grew_too_far_shrinks() -> None:
    result, attempts = search_with(lambda members, twin: 8.0 if 3 in members and twin is None else 0.0)
    assert result.base.program.members == (1, 3)
    assert [members for members, twin in attempts if twin is None] == [(1,), (1, 2), (1, 2, 3), (1, 2), (1, 3)]


def test_another_error_does_not_end_the_growth_and_is_used_only_if_no_program_has_the_same() -> None:
    result, _ = search_with(lambda members, twin: 0.0 if twin else 8.0 if 3 in members else 5.0)
    assert (result.base.program.members, result.error) == ((1, 3), 8.0)
    result, _ = search_with(lambda _, twin: 0.0 if twin else 5.0)
    assert (result.base.program.members, result.error) == ((1,), 5.0)


def test_a_program_has_the_whole_operator_whose_parts_it_reads_and_returns_no_tuple() -> None:
    result, attempts = search_with(lambda members, twin: 8.0 if 0 in members and twin is None else 0.0, case_of_parts())
    assert [members for members, twin in attempts if twin is None] == [(3,), (0, 1, 2, 3)]
    assert (result.base.program.members, result.base.program.outputs) == ((0, 1, 2, 3), (3,))
    _, attempts = search_with(lambda members, twin: 0.0, case_of_parts())
    assert attempts[-1][0] == (0, 1, 2, 3)


def test_the_twins_are_the_nearest_changes_first() -> None:
    result, attempts = search_with(lambda _, twin: 0.0 if twin and twin.floats else 8.0)
    assert [twin for _, twin in attempts if twin] == [
        BIAS,
        "compiled for SM8750 (v79)",
        "compiled for SM8350 (v68)",
        "16-bit floats instead of quantized values",
    ]
    assert result.twin_error == 0.0


def test_without_a_right_change_there_is_no_twin() -> None:
    result, _ = search_with(lambda *_: 8.0)
    assert (result.twin, result.twin_error) == (None, None)


def test_if_no_program_shows_the_error_every_trial_is_returned() -> None:
    result, attempts = search_with(lambda *_: 4.0)
    assert [trial.error for trial in result] == [4.0] * 4
    assert len(result) == len(attempts)


def test_programs_without_the_error_are_told_in_one_line() -> None:
    from qnnsweep.tasks.repro.search import Trial
    from qnnsweep.tasks.repro.texts import in_short

    ran, other = (Trial(description=f"program {error}", error=error) for error in (1.0, 0.5))
    ended = Trial(description="split", error=None, failure="no kernel")
    assert in_short([ran, other]) == "of 2 that ran, the largest error is 1.0"
    assert in_short([other, ended]) == (
        "of 1 that ran, the largest error is 0.5; 1 did not run, the first because of: no kernel"
    )
    assert in_short([ended]) == "none ran; 1 did not run, the first because of: no kernel"
