"""The ranking of errors by their estimated effects on a final output, from derivatives in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from qnnsweep.tasks.numerics.arithmetic import Part
from qnnsweep.tasks.numerics.element_use import Array, NoDerivative
from qnnsweep.tasks.numerics.ranking import PROJECTIONS, Errors, Estimate, errors_at, estimates, finite

from tests.numerics.numpy_graph import Op, Program, entry, line, matmul, scaled  # isort: skip

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
WEIGHT = np.array([[1.0, 0.5], [-1.0, 2.0], [0.25, -0.5]])
E1 = np.array([[0.25, 0.5, -0.25], [0.125, 0.0, 0.25]])
E2 = np.array([[0.5, -0.125], [0.25, 0.0]])


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def energy(tensor: Array) -> float:
    return float(np.square(tensor).sum())


def ranked(program: Program, inputs: Sequence[Array], errors: Errors, error: Array) -> dict[Part, Estimate]:
    return estimates(program.between(inputs, {}, errors_at(errors), 0.5), 0, error, errors)


def test_the_effects_on_a_small_output_of_a_linear_program_are_exact() -> None:
    errors: Errors = {1: {"resolution": E1}, 2: {"device": E2}}
    first, error = E1 @ WEIGHT, E1 @ WEIGHT + E2
    found = ranked(line(entry(X), scaled(0, 2.0), matmul(1, WEIGHT)), [X], errors, error)
    assert found.keys() == {("resolution", 1), ("device", 2)}
    assert found["resolution", 1].energy == pytest.approx(energy(first))
    assert found["device", 2].energy == pytest.approx(energy(E2))
    assert found["resolution", 1].removed == pytest.approx(energy(error) - energy(E2))
    assert {estimate.variance for estimate in found.values()} == {0.0}


def test_errors_that_cancel_each_other_remove_less_than_nothing_together() -> None:
    errors: Errors = {1: {"resolution": 2 * E1}, 2: {"device": -E1}}
    found = ranked(line(entry(X), scaled(0, 2.0), scaled(1, 1.0)), [X], errors, E1)
    assert found["resolution", 1].energy == pytest.approx(4 * energy(E1))
    assert found["resolution", 1].removed == pytest.approx(0)  # the other error alone has the same energy
    assert found["device", 2].removed == pytest.approx(energy(E1) - 4 * energy(E1))


@pytest.mark.parametrize("elements", [1, 8, 9, 1000])
def test_an_error_along_the_whole_error_is_exact_for_any_size(elements: int) -> None:
    x, device_error = normal(elements), normal(elements, seed=1) / 8
    program = line(entry(x), scaled(0, 2.0), scaled(1, 3.0))
    found = ranked(program, [x], {1: {"device": device_error}}, 3 * device_error)
    assert found["device", 1].removed == pytest.approx(energy(3 * device_error))


def test_random_projections_estimate_energies_within_their_standard_error() -> None:
    x = normal(400)
    program, found, exact = line(entry(x), scaled(0, 1.0), scaled(1, 1.0)), list[Estimate](), list[float]()
    for seed in range(100):
        first, second = normal(400, seed=seed), 0.5 * normal(400, seed=1000 + seed)
        errors: Errors = {1: {"resolution": first}, 2: {"device": second}}
        found.append(ranked(program, [x], errors, first + second)["resolution", 1])
        exact.append(energy(first))
    misses = np.array([estimate.energy for estimate in found]) - exact
    assert misses.mean() == pytest.approx(0, abs=3 * misses.std() / 10)
    assert np.sqrt(np.mean([estimate.variance for estimate in found])) == pytest.approx(misses.std(), rel=0.35)


def test_a_large_output_without_an_error_needs_no_projections() -> None:
    program = line(entry(normal(400)), scaled(0, 2.0))
    assert ranked(program, [normal(400)], {1: {"device": np.zeros(400)}}, np.zeros(400)) == {}
    assert PROJECTIONS < 400


def test_the_errors_of_inputs_have_negative_indices() -> None:
    found = ranked(line(entry(X), scaled(0, 2.0)), [X], {-1: {"resolution": E1}}, 2 * E1)
    assert found[("resolution", -1)].energy == pytest.approx(energy(2 * E1))


def test_errors_that_are_not_finite_are_left_out() -> None:
    infinite = np.where(E1 > 0, np.inf, 0.0)
    assert finite({1: {"overflow": infinite, "resolution": E1}, 2: {"overflow": infinite}}) == {1: {"resolution": E1}}


def root(source: int) -> Op:
    def pullback(weights: Sequence[Array], x: Array) -> list[Array]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return [weights[0] / (2 * np.sqrt(x))]

    return Op(reads=(source,), forward=np.sqrt, pullback=pullback)


@pytest.mark.parametrize(("wrong", "is_known"), [(0.0, True), (0.5, False)])
def test_an_element_with_an_error_must_have_a_derivative(wrong: float, is_known: bool) -> None:
    inputs = [np.array([[0.0, 4.0]])]
    program = Program([entry(inputs[0]), scaled(0, 1.0), root(1)], [2])
    run = program.between(inputs, {}, {1: np.zeros((1, 2))}, 0.5)
    error, errors = np.array([[0.1, 0.2]]), {1: {"device": np.array([[wrong, 0.5]])}}
    if is_known:
        assert estimates(run, 0, error, errors)["device", 1].energy == pytest.approx(0.5**2 / 16)
    else:
        with pytest.raises(NoDerivative, match="no finite derivative where its value has an error"):
            estimates(run, 0, error, errors)


def test_an_operator_without_a_derivative_is_the_reason() -> None:
    class Underivable:
        def gradients(self, *_: object) -> Mapping[int, Array]:
            raise NoDerivative("heaviside has none")

    with pytest.raises(NoDerivative, match="heaviside has none"):
        estimates(Underivable(), 0, E1, {1: {"device": E1}})
