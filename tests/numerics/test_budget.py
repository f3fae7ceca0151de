"""The error budget of final outputs: the energy of each cause's effect, from runs in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.budget import PROJECTIONS, Effect, OutputBudget
from qnnsweep.tasks.numerics.element_use import Array, NoDerivative
from qnnsweep.tasks.numerics.path import ARISING, Errors, RunAt, errors_at
from qnnsweep.tasks.records.vocabulary import Cause

from tests.numerics.numpy_graph import (  # isort: skip
    Op, Program, added, entry, getitem, line, matmul, max_pool, mean, multiplied,
    refused, relu, relu6, scaled, sliced, softmax, transposed,
)  # fmt: skip

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
WEIGHT = np.array([[1.0, 0.5], [-1.0, 2.0], [0.25, -0.5]])
E1 = np.array([[0.25, 0.5, -0.25], [0.125, 0.0, 0.25]])
E2 = np.array([[0.5, -0.125], [0.25, 0.0]])


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def values_with(program: Program, inputs: Sequence[Array], errors: Mapping[int, Array]) -> list[Array]:
    """Return the final outputs of a run with whole errors: those of the device."""
    entries = [index for index, op in enumerate(program.ops) if not op.reads and not op.constant]
    values: dict[int, Any] = {}
    for index in range(len(program.ops)):
        values[index] = program.call(index, values)
        if index in entries:
            position = entries.index(index)
            values[index] = inputs[position] + errors.get(-1 - position, 0.0)
        if index in errors:
            values[index] = values[index] + errors[index]
    return program.answer(values)


def budget_of(
    program: Program, inputs: Sequence[Array], errors: Errors, output: int = 0, *, forward: bool = True
) -> OutputBudget:
    """Return the budget of one final output on one sample."""
    sums = errors_at(errors)
    actual, reference = (values_with(program, inputs, added)[output] for added in (sums, {}))
    budget = OutputBudget()
    budget.add(run_at(program, inputs, sums, forward=forward), output, actual, reference, errors)
    return budget


def run_at(program: Program, inputs: Sequence[Array], errors: Mapping[int, Array], *, forward: bool = True) -> RunAt:
    return lambda fraction: replace(program.between(inputs, {}, errors, fraction), forward=forward)


def shares(budget: OutputBudget) -> dict[tuple[Cause, int | None], float]:
    return {(effect.cause, effect.operator): effect.share or 0.0 for effect in budget.effects()}


def totals(budget: OutputBudget) -> dict[Cause, float]:
    return {cause: share for (cause, operator), share in shares(budget).items() if operator is None}


def energy(tensor: Array) -> float:
    return float(np.square(tensor).sum())


LINEAR = line(entry(X), scaled(0, 2.0), matmul(1, WEIGHT))


def test_a_linear_program_is_explained_exactly_and_its_shares_are_those_by_hand() -> None:
    budget = budget_of(LINEAR, [X], {1: {"resolution": E1}, 2: {"device": E2}})
    error = E1 @ WEIGHT + E2
    first, second = energy(E1 @ WEIGHT) / energy(error), energy(E2) / energy(error)
    assert shares(budget) == pytest.approx(
        {
            ("weights", None): 0.0,
            ("clipping", None): 0.0,
            ("resolution", None): first,
            ("device", None): second,
            ("cross", None): 1 - first - second,
            ("unexplained", None): 0.0,
            ("resolution", 1): first,
            ("device", 2): second,
        },
        abs=1e-9,
    )


def test_the_effect_alone_is_the_snr_of_the_output_with_this_error_alone() -> None:
    effects = budget_of(LINEAR, [X], {1: {"resolution": E1}, 2: {"device": E2}}).effects()
    by_operator = {effect.operator: effect for effect in effects if effect.operator is not None}
    signal = energy(X * 2 @ WEIGHT)
    assert by_operator[1].alone_snr_db == pytest.approx(10 * np.log10(signal / energy(E1 @ WEIGHT)))
    assert by_operator[2].alone_snr_db == pytest.approx(10 * np.log10(signal / energy(E2)))


def test_the_causes_of_one_operator_are_distinguished_and_the_largest_share_comes_first() -> None:
    parts: Errors = {1: {"clipping": E1 * 0.5, "resolution": E1 * 3.0, "device": np.zeros_like(E1)}}
    budget = budget_of(LINEAR, [X], parts)
    assert [(effect.cause, effect.operator) for effect in budget.effects()] == [
        *((cause, None) for cause in ARISING),
        ("cross", None),
        ("unexplained", None),
        ("resolution", 1),
        ("clipping", 1),
        ("device", 1),
    ]
    # The error is 3.5 times E1: 3**2 and 0.5**2 of 3.5**2 parts, and the rest is in both together.
    assert shares(budget)["resolution", 1] == pytest.approx(9 / 12.25)
    assert shares(budget)["clipping", 1] == pytest.approx(0.25 / 12.25)
    assert totals(budget)["cross"] == pytest.approx(3 / 12.25)
    assert budget.effects()[-1] == Effect(cause="device", operator=1, share=0.0, share_error=0.0, alone_snr_db=None)


def test_errors_that_cancel_each_other_have_a_negative_cross_share() -> None:
    half = budget_of(line(entry(X), scaled(0, 2.0), scaled(1, 1.0)), [X], {1: {"device": 2 * E1}, 2: {"device": -E1}})
    assert totals(half)["device"] == pytest.approx(1.0)
    assert shares(half)["device", 1] == pytest.approx(4.0)
    opposite = {1: {"resolution": 2 * E1}, 2: {"device": -E1}}
    assert totals(budget_of(line(entry(X), scaled(0, 2.0), scaled(1, 1.0)), [X], opposite)) == pytest.approx(
        {"weights": 0, "clipping": 0, "resolution": 4, "device": 1, "cross": -4, "unexplained": 0}, abs=1e-9
    )


def test_a_quadratic_program_is_explained_exactly_by_the_midpoint_rule() -> None:
    program = line(entry(X), scaled(0, 2.0), multiplied(1, 1), scaled(2, 0.5))
    budget = budget_of(program, [X], {1: {"resolution": E1}, 2: {"device": E1}})
    # (2 X + e)**2 - (2 X)**2 = 2 (2 X + e / 2) e
    effect, device_error = (2 * X + E1 / 2) * E1, E1 / 2
    assert totals(budget)["unexplained"] == pytest.approx(0, abs=1e-9)
    assert shares(budget)["resolution", 1] == pytest.approx(energy(effect) / energy(effect + device_error))
    assert shares(budget)["device", 2] == pytest.approx(energy(device_error) / energy(effect + device_error))


def test_terms_of_third_order_are_unexplained() -> None:
    program = line(entry(X), scaled(0, 2.0), multiplied(1, 1), multiplied(2, 1))
    unexplained = {
        scale: totals(budget_of(program, [X], {1: {"device": scale * E1}}))["unexplained"] for scale in (0.5, 1.0)
    }
    # (v + e)**3 - v**3 = 3 (v + e / 2)**2 e + e**3 / 4
    assert unexplained[1.0] == pytest.approx(energy(E1**3 / 4) / energy((2 * X + E1) ** 3 - (2 * X) ** 3))
    assert unexplained[0.5] < unexplained[1.0] / 10


def test_an_error_that_the_effects_do_not_explain_has_a_reason() -> None:
    budget = OutputBudget()
    actual, reference = (2 * X + 4 * E1) @ WEIGHT, 2 * X @ WEIGHT
    budget.add(run_at(LINEAR, [X], {1: E1}), 0, actual, reference, {1: {"device": E1}})
    assert totals(budget)["unexplained"] == pytest.approx(9 / 16)
    assert budget.why == (
        "the effects of the operators' errors do not add up with derivatives at 3 points between the float model's run "
        "and the device's"
    )


def test_the_errors_of_inputs_belong_to_the_input() -> None:
    program = line(entry(X), scaled(0, 2.0), multiplied(0, 1))
    errors: Errors = {2: {"resolution": E1 / 8}, -1: {"resolution": E1 / 4}}
    budget = budget_of(program, [X], errors)
    # 2 (x + e)**2 - 2 x**2 = 4 (x + e / 2) e
    from_input, rounding = 4 * (X + E1 / 8) * E1 / 4, E1 / 8
    whole = energy(from_input + rounding)
    assert {key: share for key, share in shares(budget).items() if key[1] is not None} == pytest.approx(
        {("resolution", 2): energy(rounding) / whole, ("resolution", -1): energy(from_input) / whole}
    )
    assert totals(budget)["unexplained"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("elements", "projections"), [(1, 1), (7, 7), (8, 8), (9, 8), (1000, 8)])
def test_an_output_of_few_elements_is_projected_on_all_of_them(elements: int, projections: int) -> None:
    x, first, second = (normal(elements, seed=seed) for seed in range(3))
    program = line(entry(x), scaled(0, 2.0), scaled(1, 3.0))
    budget = budget_of(program, [x], {1: {"device": first / 8}, 2: {"resolution": second}}, forward=False)
    assert budget.projections == projections
    exact = elements <= PROJECTIONS
    assert {effect.share_error == 0 for effect in budget.effects() if effect.cause == "device"} == {exact}
    if exact:
        assert shares(budget)["device", 1] == pytest.approx(energy(3 / 8 * first) / energy(3 / 8 * first + second))


def test_the_share_of_an_error_along_the_whole_error_is_exact_for_any_size() -> None:
    x, device_error = normal(400), normal(400, seed=1) / 8
    program = line(entry(x), scaled(0, 2.0), scaled(1, 3.0))
    budget = budget_of(program, [x], {1: {"device": device_error}}, forward=False)
    assert shares(budget)["device", 1] == pytest.approx(1)
    assert totals(budget)["unexplained"] == pytest.approx(0, abs=1e-9)


def test_random_projections_estimate_shares_within_their_standard_error() -> None:
    x, first, second = normal(400), normal(400, seed=1), 0.5 * normal(400, seed=2)
    program = line(entry(x), scaled(0, 1.0), scaled(1, 1.0))
    errors: Errors = {1: {"resolution": first}, 2: {"device": second}}
    together, run = OutputBudget(), run_at(program, [x], errors_at(errors), forward=False)
    singles: list[Effect] = []
    for sample in range(100):
        single = OutputBudget(before=sample)
        for budget in (single, together):
            budget.add(run, 0, x + first + second, x, errors)
        singles += [effect for effect in single.effects() if effect.operator == 1]
    estimates, stated = (np.array([getattr(effect, name) for effect in singles]) for name in ("share", "share_error"))
    exact = energy(first) / energy(first + second)
    assert estimates.mean() == pytest.approx(exact, abs=3 * estimates.std() / 10)
    assert np.sqrt(np.mean(stated**2)) == pytest.approx(estimates.std(), rel=0.25)
    (mean_effect,) = [effect for effect in together.effects() if effect.operator == 1]
    assert mean_effect.share == pytest.approx(estimates.mean())
    assert mean_effect.share_error == pytest.approx(np.sqrt(np.mean(stated**2)) / 10)
    assert (together.samples, together.projections) == (100, 800)


def test_the_energies_of_several_samples_are_added() -> None:
    large, small = OutputBudget(), budget_of(LINEAR, [X], {1: {"device": E1}})
    for errors in ({1: {"device": E1}}, {1: {"resolution": 2 * E1}}):
        sums = errors_at(errors)
        actual, reference = values_with(LINEAR, [X], sums)[0], values_with(LINEAR, [X], {})[0]
        large.add(run_at(LINEAR, [X], sums), 0, actual, reference, errors)
    assert shares(small)["device", 1] == pytest.approx(1)
    assert (shares(large)["device", 1], shares(large)["resolution", 1]) == (pytest.approx(0.2), pytest.approx(0.8))
    assert large.samples == 2


def test_without_gradients_the_whole_error_is_unexplained() -> None:
    program = line(entry(X), scaled(0, 2.0), refused(1, "no such kernel"))
    with pytest.raises(NoDerivative, match="no such kernel"):
        program.between([X], {}, {1: E1}, 0.5)
    budget = OutputBudget()
    budget.add("no such kernel", 0, X + E1, X, {1: {"device": E1}})
    assert budget.why == "no such kernel"
    assert totals(budget) == {
        "weights": 0, "clipping": 0, "resolution": 0, "device": 0, "cross": 0, "unexplained": 1,
    }  # fmt: skip
    assert budget.projections == 0


def test_an_error_that_no_cause_has_is_unexplained() -> None:
    budget = OutputBudget()
    budget.add(run_at(LINEAR, [X], {1: E1}), 0, np.ones((2, 2)), np.zeros((2, 2)), {1: {"device": 0 * E1}})
    assert totals(budget)["unexplained"] == 1
    assert {effect.alone_snr_db for effect in budget.effects()} == {None}


@pytest.mark.parametrize("output", [X @ WEIGHT, np.array(3.0), np.array([1, 5]), np.array([True])])
def test_an_output_without_an_error_has_no_effects(output: Array) -> None:
    budget = OutputBudget()
    budget.add("no derivatives", 0, output, output, {})
    assert budget.effects() == []
    right = budget_of(LINEAR, [X], {1: {"device": 0 * E1}})
    assert (right.effects(), right.samples) == ([], 1)


def test_a_large_output_without_an_error_needs_no_projections() -> None:
    program = line(entry(normal(400)), scaled(0, 2.0))
    budget = budget_of(program, [normal(400)], {1: {"device": np.zeros(400)}}, forward=False)
    assert (budget.effects(), budget.projections) == ([], 0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_sample_whose_error_is_not_finite_is_left_out_with_a_reason(wrong: float) -> None:
    budget = OutputBudget()
    budget.add("no derivatives", 0, np.full((2, 2), wrong), np.zeros((2, 2)), {1: {"device": E1}})
    assert (budget.effects(), budget.samples) == ([], 0)
    assert budget.why == "a sample is left out, because its output has other infinities or NaNs"
    run, alone = run_at(LINEAR, [X], {1: E1}), OutputBudget()
    for other in (budget, alone):
        other.add(run, 0, np.ones((2, 2)), np.zeros((2, 2)), {1: {"device": E1}})
    assert (budget.effects(), budget.samples) == (alone.effects(), 1)


def test_infinities_that_both_outputs_have_are_no_error() -> None:
    infinite = np.where(X > 0, X, -np.inf)
    budget = OutputBudget()
    budget.add("no derivatives", 0, infinite + 1, infinite, {})
    assert (totals(budget)["unexplained"], budget.samples) == (1, 1)


def test_an_operator_without_a_derivative_is_the_reason_for_an_unexplained_error() -> None:
    class Underivable:
        def effect(self, _: Mapping[int, Array]) -> None:
            return None

        def gradients(self, *_: object) -> Mapping[int, Array]:
            raise NoDerivative("heaviside has none")

    budget = OutputBudget()
    budget.add(lambda _: Underivable(), 0, X + E1, X, {1: {"device": E1}})
    assert (totals(budget)["unexplained"], budget.why, budget.projections) == (1, "heaviside has none", 0)


def root(source: int) -> Op:
    def pullback(weights: Sequence[Array], x: Array) -> list[Array]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return [weights[0] / (2 * np.sqrt(x))]

    return Op(reads=(source,), forward=np.sqrt, pullback=pullback)


def test_an_element_without_an_error_has_no_effect_where_a_root_has_no_derivative() -> None:
    inputs = [np.array([[0.0, 4.0]])]
    program = Program([entry(inputs[0]), scaled(0, 1.0), root(1)], [2])
    budget = budget_of(program, inputs, {1: {"device": np.array([[0.0, 0.5]])}}, forward=False)
    assert totals(budget)["device"] == pytest.approx(1, abs=1e-3)


def test_an_error_where_a_root_has_no_derivative_is_unexplained() -> None:
    inputs = [np.array([[0.0, 4.0]])]
    program = Program([entry(inputs[0]), scaled(0, 1.0), root(1)], [2])
    parts: Errors = {1: {"device": np.array([[0.5, 0.5]]), "resolution": np.array([[-0.5, 0.0]])}}
    budget = budget_of(program, inputs, parts, forward=False)
    reason = "an operator has no finite derivative where its value has an error"
    assert (totals(budget)["unexplained"], budget.why) == (1, reason)


def test_an_output_that_is_not_floating_point_is_unexplained() -> None:
    budget = OutputBudget()
    program = Program([entry(X), scaled(0, 1.0), max_pool(1), getitem(2, 1)], [3])
    budget.add(run_at(program, [X[:, :2]], {1: E1[:, :2]}), 0, np.array([[1], [0]]), np.array([[0], [0]]), {1: {}})
    assert totals(budget)["unexplained"] == 1


def test_each_output_has_its_own_budget() -> None:
    program = Program([entry(X), scaled(0, 2.0), scaled(1, 3.0), scaled(0, 1.0)], [2, 3, 1])
    errors: Errors = {1: {"device": E1}, 3: {"resolution": E1}}
    assert [set(shares(budget_of(program, [X], errors, output))) - set(ALL_TOTALS) for output in range(3)] == [
        {("device", 1)},
        {("resolution", 3)},
        {("device", 1)},
    ]


ALL_TOTALS = [(cause, None) for cause in (*ARISING, "cross", "unexplained")]

STEPS = [
    relu, relu6, softmax, mean, transposed, lambda x: scaled(x, -1.5), lambda x: sliced(x, 0, 2),
    lambda x: added(x, x), lambda x: added(x, 0), lambda x: multiplied(x, x), lambda x: matmul(x, np.eye(4)[::-1]),
]  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> Program:
    """Draw a program of operators in sequence or in parallel. Operators that nothing reads are final outputs."""
    program = Program([entry(normal(4, 4, seed=draw(st.integers(0, 99)))), matmul(0, np.eye(4) * 1.25)])
    for _ in range(draw(st.integers(1, 6))):
        program.add(draw(st.sampled_from(STEPS))(draw(st.integers(1, len(program.ops) - 1))))
    used = {source for op in program.ops for source in op.reads}
    program.output_ops = [index for index in range(len(program.ops)) if index not in used]
    return program


@given(networks().filter(Program.fits), st.data())
def test_the_totals_of_every_output_add_up_to_one(program: Program, data: st.DataObject) -> None:
    x = np.asarray(program.run()[0])
    errors: dict[int, dict[Cause, Array]] = {
        index: {
            cause: normal(*np.shape(program.run()[index]), seed=index) * data.draw(st.sampled_from([0, 0.01, 1.0]))
            for cause in data.draw(st.lists(st.sampled_from(ARISING), min_size=1, unique=True))
        }
        for index in data.draw(st.sets(st.integers(1, len(program.ops) - 1), min_size=1))
    }
    for output in range(len(program.output_ops)):
        budget = budget_of(program, [x], errors, output, forward=data.draw(st.booleans()))
        assert budget.effects() == [] or sum(totals(budget).values()) == pytest.approx(1)
        assert all((effect.share or 0) >= 0 for effect in budget.effects() if effect.cause != "cross")


def test_the_totals_and_the_largest_effects_are_exact_if_the_operators_have_forward_derivatives() -> None:
    x, first, second = normal(40), normal(40, seed=1), 0.5 * normal(40, seed=2)
    program = line(entry(x), scaled(0, 1.0), scaled(1, 1.0))
    errors: Errors = {1: {"resolution": first}, 2: {"device": second}}
    budget = budget_of(program, [x], errors)
    whole = energy(first + second)
    assert shares(budget) == pytest.approx(
        {
            ("weights", None): 0.0,
            ("clipping", None): 0.0,
            ("resolution", None): energy(first) / whole,
            ("device", None): energy(second) / whole,
            ("cross", None): 1 - (energy(first) + energy(second)) / whole,
            ("unexplained", None): 0.0,
            ("resolution", 1): energy(first) / whole,
            ("device", 2): energy(second) / whole,
        },
        abs=1e-6,
    )
    assert {effect.share_error for effect in budget.effects()} == {0.0, None}
