"""The error budgets of whole programs by ablation, from the errors that the replay finds in a captured run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.comparison.budget import output_budgets
from qnnsweep.tasks.comparison.evidence import SampleInputs
from qnnsweep.tasks.numerics.ablation import Effect, OutputBudget, Outputs
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.replay import replay
from qnnsweep.tasks.records.vocabulary import Cause
from tests.numerics.judged import normal
from tests.numerics.numpy_device import Device, logged, quantization

from tests.numerics.numpy_graph import (  # isort: skip
    Op, Program, above, added, chosen, constant, entry, line, matmul, multiplied, relu, relu6, scaled, softmax,
    transposed, viewed,
)  # fmt: skip

LINEAR_STEPS = [
    transposed, lambda x: scaled(x, -1.5), lambda x: added(x, x), lambda x: added(x, 0),
    lambda x: matmul(x, np.eye(4, dtype=np.float32)[::-1] * 0.75),
]  # fmt: skip


@dataclass(frozen=True)
class Found:
    """The budget of one output. `causes`: the shares of all causes but for rounding. `first`: the part named first."""

    budget: OutputBudget

    @property
    def causes(self) -> dict[Cause, float]:
        totals = {effect.cause: effect.share or 0.0 for effect in self.budget.effects if effect.operator is None}
        return {cause: share for cause, share in totals.items() if abs(share) > 1e-6}

    @property
    def first(self) -> Effect:
        return next(effect for effect in self.budget.effects if effect.operator is not None)


def budgets_of(
    program: Program,
    captured: Mapping[int, CapturedValue],
    floats: FloatConstants | None = None,
    shipping: Sequence[Array] | None = None,
) -> list[Found]:
    """Return the budgets of a captured run. `shipping`: its outputs, if they are not those of the debug program."""
    reference = program.run()
    inputs = [np.asarray(reference[index]) for index in program.entries]
    run = DeviceRun(program, captured, {})
    replayed = replay(
        run,
        lambda _, error: (error.max_steps or 0) > 0,
        lambda index: np.asarray(reference[index]),
        floats or FloatConstants(),
        with_errors=True,
    )
    exact = program.between(inputs, (floats or FloatConstants()).all, {}, 0.0)
    debug = dict(enumerate(captured[index].dequantized(np.float32) for index in program.output_ops))
    outputs = Outputs(
        eager={number: np.asarray(exact.values[index]) for number, index in enumerate(program.output_ops)},
        shipping=debug if shipping is None else dict(enumerate(shipping)),
        debug=debug,
    )
    sample = SampleInputs(inputs, inputs, [False] * len(inputs))
    found = output_budgets({}, run, sample, floats or FloatConstants(), replayed, outputs)
    return [Found(found[output]) for output in sorted(found)]


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


@given(linear_networks(), st.data())
def test_the_shares_of_the_causes_add_up_and_none_is_negative_or_unexplained(
    program_and_device: tuple[Program, Device], data: st.DataObject
) -> None:
    program, device = program_and_device
    damaged = data.draw(st.sampled_from([None, *device.qparams]))
    damages = {} if damaged is None else {damaged: lambda elements: elements + 2}
    for found in budgets_of(program, device.capture(program, damages)):
        assert min(found.causes.values(), default=0.0) >= 0
        assert sum(found.causes.values()) == pytest.approx(1 if found.causes else 0)
        assert found.causes.get("unexplained", 0.0) == pytest.approx(0, abs=1e-4)
        assert found.causes.get("graph", 0.0) == pytest.approx(0, abs=1e-6)


@given(linear_networks())
def test_the_operator_that_is_named_first_is_the_one_whose_absence_removes_most(
    program_and_device: tuple[Program, Device],
) -> None:
    program, device = program_and_device
    for found in budgets_of(program, device.capture(program)):
        ablated = [effect for effect in found.budget.effects if effect.operator is not None and effect.without_snr_db]
        assert [effect.without_snr_db for effect in ablated] == sorted(
            (effect.without_snr_db for effect in ablated), key=lambda decibels: -(decibels or 0)
        )


@pytest.mark.parametrize("moving", [[], [transposed], [transposed, transposed], [viewed, transposed]])
def test_values_that_only_move_on_the_grid_of_another_have_no_part_in_its_error(
    moving: list[Callable[..., Op]],
) -> None:
    program = Program([entry(normal(4, 4)), scaled(0, 1.0)])
    for move in moving:
        program.add(move(len(program.ops) - 1))
    program.output_ops = [program.add(scaled(len(program.ops) - 1, 2.0))]
    grid = quantization(0.01, bits=8)
    (found,) = budgets_of(program, Device(dict.fromkeys(range(1, len(program.ops) - 1), grid)).capture(program))
    exact = normal(4, 4)
    rounding = np.rint(exact / 0.01) * 0.01 - exact
    without_db = 10 * np.log10(np.square(exact).sum() / np.square(rounding).sum())
    assert (found.first.cause, found.first.operator) == ("clipping", 1)
    assert found.first.without_snr_db == pytest.approx(without_db, abs=0.01)
    assert {effect.operator for effect in found.budget.effects if (effect.share or 0) > 1e-6} == {None, 1}


def test_values_that_move_to_another_grid_have_a_part_of_their_own() -> None:
    program = line(entry(normal(4, 4)), scaled(0, 1.0), transposed(1), scaled(2, 2.0))
    fine, coarse = quantization(0.001, bits=8), quantization(0.1, bits=16)
    (found,) = budgets_of(program, Device({1: quantization(0.001), 2: coarse}).capture(program))
    assert (found.first.cause, found.first.operator) == ("resolution", 2)
    (found,) = budgets_of(program, Device({1: quantization(0.001), 2: fine}).capture(program))
    assert (found.first.cause, found.first.operator) == ("clipping", 2)


def test_values_without_dimensions_are_explained() -> None:
    program = line(entry(np.float32(0.537)), scaled(0, 1.0), added(1, 1), scaled(2, 3.0))
    device = Device({1: quantization(0.1), 2: quantization(0.01, bits=8)})
    for damages in ({}, {3: lambda elements: elements + 0.25}):
        (found,) = budgets_of(program, device.capture(program, damages))
        assert sum(found.causes.values()) == pytest.approx(1)
        assert found.causes.get("unexplained", 0.0) == pytest.approx(0, abs=1e-4)


def test_a_value_that_its_grid_rounds_to_zeros_is_explained() -> None:
    program = line(entry(np.array([[0.03, -0.04, 0.02, 0.01]], np.float32)), scaled(0, 1.0), scaled(1, 2.0))
    (found,) = budgets_of(program, Device({1: quantization(0.1)}).capture(program))
    assert found.causes == {"resolution": pytest.approx(1)}
    assert (found.first.cause, found.first.operator, found.first.share) == ("resolution", 1, pytest.approx(1))
    assert found.first.without_snr_db is None  # without it there is no error


def test_an_infinity_that_no_reader_uses_leaves_the_budget_finite() -> None:
    masked = constant(np.array([[0, 0, 0, -np.inf]], np.float32))
    program = line(entry(np.array([[1.03, 2.04, 3.01, 4]], np.float32)), masked, added(0, 1), softmax(2))
    (found,) = budgets_of(program, Device({2: quantization(0.1)}).capture(program))
    assert found.causes == {"resolution": pytest.approx(1)}


@pytest.mark.parametrize("fused", [[scaled(1, 1.3), relu6(2)], [relu(1)], [relu(1), scaled(2, 1.3), relu6(3)]])
def test_the_grids_of_values_that_a_fused_chain_never_rounds_have_no_share(fused: list[Op]) -> None:
    """The debug program logs rounded values, but the device computes the chain without rounding between."""
    program = line(entry(normal(16, 8)), scaled(0, 2.0), *fused)
    last = len(program.ops) - 1
    steps = {index: quantization(0.5 if index < last else 0.02, bits=10) for index in range(1, last + 1)}
    values = program.run()
    captured = {index: logged(np.asarray(values[index]), steps.get(index)) for index in range(last + 1)}
    (found,) = budgets_of(program, captured)
    assert found.causes == {"resolution": pytest.approx(1)}
    assert found.first.operator == last


def leaky(source: int) -> Op:
    return Op(
        reads=(source,),
        forward=lambda x: np.where(x > 0, x, np.float32(0.1) * x),
        pullback=lambda w, x: [w[0] * np.where(x > 0, 1.0, 0.1)],
    )


@pytest.mark.parametrize("is_merged", [True, False])
def test_whether_a_function_is_merged_follows_from_the_codes(is_merged: bool) -> None:
    program = line(entry(normal(64, 8)), scaled(0, 2.0), leaky(1))
    coarse, fine = quantization(0.2, bits=8), quantization(0.02, bits=10)
    before = np.asarray(program.run()[1])
    conv = logged(before, coarse)
    read = before if is_merged else conv.dequantized(np.float32)
    captured = {0: logged(np.asarray(program.run()[0]), None), 1: conv}
    captured[2] = logged(np.where(read > 0, read, np.float32(0.1) * read), fine)
    (found,) = budgets_of(program, captured)
    assert found.causes == {"resolution": pytest.approx(1)}
    assert found.first.operator == (2 if is_merged else 1)


def test_a_log_that_its_readers_contradict_has_the_error_of_its_grid_only() -> None:
    program = line(entry(normal(16, 8)), scaled(0, 2.0), matmul(1, np.eye(8) * 1.5), scaled(2, 1.5))
    captured = Device({index: quantization(0.05) for index in (1, 2, 3)}).capture(program)
    (right,) = budgets_of(program, captured)
    rolled = CapturedValue(elements=np.roll(captured[1].elements, 1, -1), qparams=captured[1].qparams)
    (contradicted,) = budgets_of(program, captured | {1: rolled})
    assert contradicted.causes == pytest.approx(right.causes)
    assert right.causes == {"resolution": pytest.approx(1)}


def weighted() -> tuple[Program, Array]:
    """Return a program [weight times x, sum, relu] with a rounded weight, and that weight's error."""
    weight = normal(4, 4)
    rounded = np.round(weight * 4) / 4
    program = line(entry(normal(4, 4, seed=1)), constant(rounded), multiplied(0, 1), added(2, 0), relu(3))
    return program, rounded - weight


@pytest.mark.parametrize("hidden", [(), (2,), (2, 3)])
def test_the_error_of_a_weight_is_known_at_a_value_that_was_not_logged(hidden: tuple[int, ...]) -> None:
    program, error = weighted()
    values = {index: np.asarray(value) for index, value in program.run().items()}
    captured = {
        index: CapturedValue(elements=value, qparams=None)
        for index, value in values.items()
        if index not in (*hidden, 1)
    }
    floats = FloatConstants(weights=program.changed_constants({1: error}))
    (found,) = budgets_of(program, captured, floats)
    assert found.causes == {"weights": pytest.approx(1)}
    assert (found.first.cause, found.first.operator) == ("weights", 2)
    biases = FloatConstants(biases=floats.weights)
    (of_bias,) = budgets_of(program, captured, biases)
    assert (of_bias.causes, of_bias.first.cause) == ({"bias": pytest.approx(1)}, "bias")


def test_a_clip_before_another_clip_gives_the_whole_error_alone_and_removes_none() -> None:
    program = line(entry(np.array([[0.5, 9.0, 9.5, 0.25]], np.float32)), scaled(0, 1.0), scaled(1, 1.0))
    narrow = quantization(1 / 64, bits=10)  # up to 8
    (found,) = budgets_of(program, Device({1: narrow, 2: narrow}).capture(program))
    assert found.causes == {"clipping": pytest.approx(1)}
    assert (found.first.cause, found.first.operator, found.first.share) == ("clipping", 1, pytest.approx(1))
    assert found.first.alone_snr_db == pytest.approx(found.first.without_snr_db)


def test_wrong_booleans_are_an_error_of_the_device() -> None:
    x = normal(4, 8).astype(np.float32)
    program = line(entry(x), above(0, 0.0), scaled(0, 3.0), chosen(1, 0, 2))
    captured = Device({}).capture(program, {1: lambda mask: ~mask})
    (found,) = budgets_of(program, captured)
    assert found.causes == {"device": pytest.approx(1)}
    assert (found.first.cause, found.first.operator) == ("device", 1)


def total(found: Found, cause: Cause) -> Effect:
    return next(effect for effect in found.budget.effects if effect.operator is None and effect.cause == cause)


def test_an_error_that_only_the_debug_program_has_is_not_named() -> None:
    program = line(entry(normal(16, 8)), scaled(0, 2.0), scaled(1, 1.5))
    device = Device({1: quantization(0.05), 2: quantization(0.05)})
    captured = device.capture(program, {2: lambda elements: elements + 40})
    right = device.capture(program)[2].dequantized(np.float32)
    (found,) = budgets_of(program, captured, shipping=[right])
    assert found.causes == {"resolution": pytest.approx(1, abs=1e-3)}
    assert found.first.cause == "resolution"
    assert (total(found, "observer").alone_snr_db or 0) < 10


def test_an_operator_is_named_although_the_debug_program_lacks_a_third_of_the_error() -> None:
    program = line(entry(normal(16, 8)), scaled(0, 2.0), scaled(1, 1.5))
    device = Device({1: quantization(0.01), 2: quantization(0.01)})
    captured = device.capture(program, {1: lambda elements: elements + 40})
    debug = captured[2].dequantized(np.float32)
    across = np.where(np.arange(8) % 2, np.float32(0.4), np.float32(-0.4))  # the debug program's error is 0.6
    (found,) = budgets_of(program, captured, shipping=[debug + across])
    assert (found.first.cause, found.first.operator) == ("device", 1)
    assert found.causes["device"] == pytest.approx(0.69, abs=0.02)
    assert found.causes["observer"] == pytest.approx(0.31, abs=0.02)
    assert sum(found.causes.values()) == pytest.approx(1)
    without = found.first.without_snr_db
    assert without == pytest.approx(total(found, "device").without_snr_db, abs=0.01)


def test_an_error_that_only_the_shipping_program_has_is_of_no_operator() -> None:
    program = line(entry(normal(16, 8)), scaled(0, 2.0), scaled(1, 1.5))
    captured = Device({1: quantization(0.01), 2: quantization(0.01)}).capture(program)
    debug = captured[2].dequantized(np.float32)
    (found,) = budgets_of(program, captured, shipping=[debug + np.float32(20)])
    assert found.causes["observer"] == pytest.approx(1, abs=1e-3)
    assert (total(found, "observer").without_snr_db or 0) > 40


def test_an_infinity_of_one_program_alone_is_held() -> None:
    program = line(entry(normal(16, 8)), scaled(0, 2.0), scaled(1, 1.5))
    captured = Device({1: quantization(0.01), 2: quantization(0.01)}).capture(program)
    infinite = captured[2].dequantized(np.float32).copy()
    infinite[0, 0] = np.inf
    (found,) = budgets_of(program, captured, shipping=[infinite])
    assert found.causes == {"observer": 1.0}


def test_every_part_of_a_small_program_is_left_out_even_if_its_derivative_is_zero() -> None:
    x = np.linspace(0.3, 2.2, 16, dtype=np.float32)
    program = line(entry(x), scaled(0, 1.0), above(1, 1.0), scaled(0, 3.0), chosen(2, 3, 0), scaled(4, 1.5))
    device = Device({1: quantization(0.5), 5: quantization(0.3)})
    (found,) = budgets_of(program, device.capture(program))
    assert (found.first.cause, found.first.operator) == ("resolution", 1)


def test_an_output_without_an_error_has_no_effects() -> None:
    program = line(entry(normal(4, 4)), scaled(0, 2.0))
    (found,) = budgets_of(program, Device({}).capture(program))
    assert found.budget == OutputBudget()
