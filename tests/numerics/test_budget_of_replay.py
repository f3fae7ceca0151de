"""The error budget of whole programs, from the errors that the replay finds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.budget import OutputBudget
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.path import Errors, errors_at
from qnnsweep.tasks.numerics.replay import replay, unlogged_weight_errors
from qnnsweep.tasks.records.vocabulary import Cause
from tests.numerics.judged import normal
from tests.numerics.numpy_device import Device, logged, quantization

from tests.numerics.numpy_graph import (  # isort: skip
    Op, Program, added, constant, entry, line, matmul, multiplied, relu, relu6, scaled, softmax, transposed,
)  # fmt: skip

LINEAR_STEPS = [
    transposed, lambda x: scaled(x, -1.5), lambda x: added(x, x), lambda x: added(x, 0),
    lambda x: matmul(x, np.eye(4, dtype=np.float32)[::-1] * 0.75),
]  # fmt: skip


@st.composite
def linear_networks(draw: st.DrawFn) -> tuple[Program, Device]:
    """Draw a linear program and a device that rounds some of its values."""
    image = normal(4, 4, seed=draw(st.integers(0, 99)))
    program = Program([entry(image), matmul(0, np.eye(4, dtype=np.float32) * 1.25)])
    for _ in range(draw(st.integers(1, 6))):
        program.add(draw(st.sampled_from(LINEAR_STEPS))(draw(st.integers(1, len(program.ops) - 1))))
    used = {source for op in program.ops for source in op.reads}
    program.output_ops = [index for index in range(len(program.ops)) if index not in used]
    steps = {
        index: quantization(draw(st.sampled_from([0.01, 0.1])), bits=draw(st.sampled_from([4, 8])))
        for index in range(1, len(program.ops))
        if draw(st.booleans())
    }
    return program, Device(steps)


def explained(program: Program, captured: Any) -> list[dict[Cause, float]]:
    """Return the totals of every output of a captured run, with the errors that the replay finds."""
    reference = program.run()
    replayed = replay(
        program, captured, lambda _, error: (error.max_steps or 0) > 0, lambda i: np.asarray(reference[i])
    )
    errors: Errors = {index: operator.errors for index, operator in replayed.items() if operator.errors}
    run_at = partial(program.between, [np.asarray(reference[0])], {}, errors_at(errors))
    budgets: list[dict[Cause, float]] = []
    for output, index in enumerate(program.output_ops):
        budget = OutputBudget()
        budget.add(run_at, output, captured[index].dequantized(), np.asarray(reference[index]), errors)
        if budget.effects():
            budgets.append(
                {effect.cause: effect.share or 0.0 for effect in budget.effects() if effect.operator is None}
            )
    return budgets


@given(linear_networks(), st.data())
def test_the_errors_of_a_replay_explain_the_outputs_of_a_linear_program(
    program_and_device: tuple[Program, Device], data: st.DataObject
) -> None:
    program, device = program_and_device
    damaged = data.draw(st.sampled_from([None, *device.qparams]))
    damages = {} if damaged is None else {damaged: lambda elements: elements + 2}
    for budget in explained(program, device.capture(program, damages)):
        assert budget["unexplained"] == pytest.approx(0, abs=1e-4)


def test_the_rounding_of_elements_that_are_unused_only_after_it_is_explained() -> None:
    # A square does not depend on an element that was rounded to zero.
    x = np.array([[0.03, -0.04, 0.02, 1.03]], np.float32)
    program = line(entry(x), scaled(0, 1.0), multiplied(1, 1))
    (budget,) = explained(program, Device({1: quantization(0.1)}).capture(program))
    assert (budget["resolution"], budget["unexplained"]) == (pytest.approx(1, abs=1e-5), pytest.approx(0, abs=1e-9))


def test_a_value_that_its_grid_rounds_to_zeros_is_explained() -> None:
    program = line(entry(np.array([[0.03, -0.04, 0.02, 0.01]], np.float32)), scaled(0, 1.0), scaled(1, 2.0))
    (budget,) = explained(program, Device({1: quantization(0.1)}).capture(program))
    assert (budget["resolution"], budget["unexplained"]) == (pytest.approx(1, abs=1e-5), pytest.approx(0, abs=1e-9))


def test_an_infinity_that_no_reader_uses_leaves_the_errors_finite() -> None:
    masked = constant(np.array([[0, 0, 0, -np.inf]], np.float32))
    program = line(entry(np.array([[1.03, 2.04, 3.01, 4]], np.float32)), masked, added(0, 1), softmax(2))
    captured = Device({2: quantization(0.1)}).capture(program)
    (budget,) = explained(program, captured)
    assert (budget["resolution"], budget["unexplained"]) == (pytest.approx(1, abs=0.01), pytest.approx(0, abs=0.01))


@pytest.mark.parametrize("fused", [[scaled(1, 1.3), relu6(2)], [relu(1)], [relu(1), scaled(2, 1.3), relu6(3)]])
def test_the_grids_of_values_that_a_fused_chain_never_rounds_have_no_share(fused: list[Op]) -> None:
    """The debug program logs rounded values, but the device computes the chain without rounding between."""
    program = line(entry(normal(16, 8)), scaled(0, 2.0), *fused)
    last = len(program.ops) - 1
    steps = {index: quantization(0.5 if index < last else 0.02, bits=10) for index in range(1, last + 1)}
    values = program.run()
    captured = {index: logged(np.asarray(values[index]), steps.get(index)) for index in range(last + 1)}
    (budget,) = explained(program, captured)
    assert budget["resolution"] == pytest.approx(1, abs=0.2)
    assert budget["unexplained"] == pytest.approx(0, abs=0.05)


def test_a_log_that_its_readers_contradict_has_the_error_of_its_grid_only() -> None:
    program = line(entry(normal(16, 8)), scaled(0, 2.0), matmul(1, np.eye(8) * 1.5), scaled(2, 1.5))
    captured = Device({index: quantization(0.05) for index in (1, 2, 3)}).capture(program)
    (right,) = explained(program, captured)
    rolled = CapturedValue(elements=np.roll(captured[1].elements, 1, -1), qparams=captured[1].qparams)
    (contradicted,) = explained(program, captured | {1: rolled})
    assert contradicted == pytest.approx(right)
    assert (right["device"], right["unexplained"]) == (0, pytest.approx(0, abs=1e-9))


def weighted(seed: int = 0) -> tuple[Program, Array, Array]:
    """Return a program [weight times x, sum, relu] with a rounded weight, and that weight's error."""
    weight = normal(4, 4, seed=seed)
    rounded = np.round(weight * 4) / 4
    program = line(
        entry(normal(4, 4, seed=1)), constant(rounded), multiplied(0, 1), added(2, 0), relu(3),
    )  # fmt: skip
    return program, rounded, rounded - weight


@pytest.mark.parametrize("hidden", [(), (2,), (2, 3)])
def test_the_error_of_a_weight_is_known_at_a_value_that_was_not_logged(hidden: tuple[int, ...]) -> None:
    program, _, error = weighted()
    values = {index: np.asarray(value) for index, value in program.run().items()}
    captured = {
        index: CapturedValue(elements=value, qparams=None)
        for index, value in values.items()
        if index not in (*hidden, 1)
    }
    floats = program.changed_constants({1: error})
    replayed = replay(program, captured, lambda *_: False, float_constants=floats)
    unlogged = unlogged_weight_errors(program, captured, {}, floats)
    assert set(unlogged) == ({2} if 2 in hidden else set())
    errors = {index: operator.errors for index, operator in replayed.items() if operator.errors}
    errors |= {index: {"weights": part} for index, part in unlogged.items()}
    exact = program.call(4, {3: np.asarray(values[0] * (values[1] - error) + values[0])})
    budget = OutputBudget()
    run_at = partial(program.between, [values[0]], floats, errors_at(errors))
    budget.add(run_at, 0, values[4], np.asarray(exact), errors)
    shares = {(effect.cause, effect.operator): effect.share for effect in budget.effects()}
    assert shares["weights", 2] == pytest.approx(1, abs=0.05)
    assert shares["unexplained", None] == pytest.approx(0, abs=0.05)
