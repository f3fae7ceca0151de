"""The path from the float model's run to the device's run: how many points it has, and the effects over its points."""

from __future__ import annotations

import numpy as np
import pytest

from qnnsweep.tasks.numerics.element_use import Array
from qnnsweep.tasks.numerics.path import Errors, Path, RunAt, errors_at, path_of
from tests.numerics.numpy_between import RunBetween
from tests.numerics.numpy_graph import Program, entry, line, relu, scaled

ONES = np.ones((2, 3))
SMALL: Errors = {1: {"device": -0.25 * ONES}}
LARGE: Errors = {1: {"resolution": -0.5 * ONES}, 2: {"device": -ONES}}


def program() -> Program:
    """Return a program that computes 2 relu(x), and whose x is 1 in every element."""
    return line(entry(ONES), scaled(0, 1.0), scaled(1, 1.0), relu(2), scaled(3, 2.0))


def run_at(errors: Errors) -> RunAt:
    return lambda fraction: program().between([ONES], {}, errors_at(errors), fraction)


def test_an_error_that_the_derivatives_halfway_explain_needs_one_point() -> None:
    path, effects = path_of(run_at(SMALL), 0, np.full(6, -0.5), SMALL)
    assert path.fractions == (0.5,)
    np.testing.assert_allclose(effects["device"], np.full(6, -0.5))


def test_errors_as_large_as_the_values_are_explained_by_more_points() -> None:
    # The errors of -1.5 move every 1 to the flat side of the ReLU. Halfway, a value is not there yet: with its
    # derivatives, the effects are 1.5 times the output's error of -2. The mean slope over the path is 2 / 3.
    path, effects = path_of(run_at(LARGE), 0, np.full(6, -2.0), LARGE)
    assert sorted(path.fractions) == pytest.approx([1 / 6, 1 / 2, 5 / 6])
    np.testing.assert_allclose(effects["resolution"], np.full(6, -2 / 3))
    np.testing.assert_allclose(effects["device"], np.full(6, -4 / 3))
    halfway = Path(run_at(LARGE)).effect(errors_at(LARGE), 0)
    np.testing.assert_allclose(np.asarray(halfway), np.full(6, -3.0))
    np.testing.assert_allclose(np.asarray(path.effect({2: -ONES}, 0)), np.full(6, -4 / 3))


def test_a_curve_that_needs_many_points_has_27_of_them_at_most() -> None:
    # Every element is zero at its fraction of the path: 1 / 1.5, 1 / 5, 1 / 15 and so on.
    sizes = np.array([[1.5, 5.0, 15.0], [40.0, 60.0, 70.0]])
    steep: Errors = {1: {"device": -sizes}}
    path, effects = path_of(run_at(steep), 0, np.full(6, -2.0), steep)
    assert sorted(path.fractions) == pytest.approx([(point + 0.5) / 27 for point in range(27)])
    before_zero = np.array([[18, 5, 2], [1, 0, 0]])
    np.testing.assert_allclose(effects["device"].reshape(2, 3), -2 * sizes * before_zero / 27)


@pytest.mark.parametrize(("error", "points"), [(np.full(6, -8.0), 3), (np.zeros(6), 1)])
def test_no_more_points_are_taken_if_they_do_not_help(error: Array, points: int) -> None:
    path, _ = path_of(run_at(SMALL), 0, error, SMALL)
    assert len(path.fractions) == points


def test_without_derivatives_in_forward_direction_there_is_one_point_and_no_effects() -> None:
    def backward_only(fraction: float) -> RunBetween:
        run = program().between([ONES], {}, errors_at(LARGE), fraction)
        return RunBetween(run.program, run.values, run.inputs, run.errors, forward=False)

    path, effects = path_of(backward_only, 0, np.full(6, -2.0), LARGE)
    assert (path.fractions, effects) == ((0.5,), {})
