"""The error of an operator, divided by cause: operators are computed again on the device's own inputs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qnnsweep.tasks.numerics.dequantize import fake_quantize
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.metrics import gap
from tests.numerics.judged import IMAGE, any_error, introducing, nearly
from tests.numerics.numpy_device import Device, quantization, replay

from tests.numerics.numpy_graph import (  # isort: skip
    Op, Program, above, added, chosen, constant, entry, gathered, getitem, line, matmul, max_pool, mean,
    refused, relu, relu6, scaled, sliced, softmax, split, topk, transposed, viewed,
)  # fmt: skip


def add_at(place: tuple[int, ...], by: float) -> Any:
    def damage(elements: Array) -> Array:
        damaged = elements.copy()
        damaged[place] += by
        return damaged

    return damage


STEPS = [
    relu, relu6, softmax, mean, transposed, viewed, lambda x: scaled(x, 0.0), lambda x: scaled(x, -1.5),
    lambda x: sliced(x, 0, 2), lambda x: added(x, x), lambda x: added(x, 0),
]  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> tuple[Program, Device]:
    """Draw a program of operators in sequence or in parallel, and a device that rounds some and does not log others."""
    image = draw(hnp.arrays(np.float32, (4, 4), elements=st.floats(-8, 8, width=32)))
    program = Program([entry(image), matmul(0, np.eye(4, dtype=np.float32) * 1.25)])
    for _ in range(draw(st.integers(1, 6))):
        source = draw(st.integers(1, len(program.ops) - 1))
        program.add(draw(st.sampled_from(STEPS))(source))
    used = {source for op in program.ops for source in op.reads}
    program.output_ops = [index for index in range(len(program.ops)) if index not in used]
    qparams = {
        index: quantization(draw(st.sampled_from([0.001, 0.01])), draw(st.integers(-50, 50)))
        for index in range(1, len(program.ops))
        if draw(st.booleans())
    }
    hidden = {index for index in range(2, len(program.ops)) if index not in qparams and draw(st.booleans())}
    return program, Device(qparams, frozenset(hidden))


NETWORKS = networks().filter(lambda program_and_device: program_and_device[0].fits())


@given(NETWORKS)
def test_a_device_that_computes_right_introduces_no_error(program_and_device: tuple[Program, Device]) -> None:
    program, device = program_and_device
    replayed = replay(program, device.capture(program), any_error)
    assert introducing(replayed) == []
    steps = {operator.introduced.max_steps for index, operator in replayed.items() if index in device.qparams}
    assert steps <= {0.0, None}  # None if no element is used
    assert set(replayed) == {index for index in range(len(program.ops)) if index not in device.hidden}
    assert not any(operator.contradicted for operator in replayed.values())


@given(NETWORKS, st.data())
def test_one_damaged_operator_introduces_the_error_and_no_other_does(
    program_and_device: tuple[Program, Device], data: st.DataObject
) -> None:
    program, device = program_and_device
    clean = device.capture(program)
    index = data.draw(st.sampled_from(sorted(set(clean) - {0})))
    place = tuple(data.draw(st.integers(0, size - 1)) for size in clean[index].elements.shape)
    # Far more than the missing rounding of the operators before it can explain.
    by = data.draw(st.sampled_from([-2000, 2000])) if index in device.qparams else 3.0
    captured = device.capture(program, {index: add_at(place, by)})
    change = captured[index].dequantized() - clean[index].dequantized()
    assume(change.any())  # a saturated element cannot be damaged further
    replayed = replay(program, captured, any_error)
    here = replayed.pop(index)
    assert introducing(replayed) == []
    if any_error(index, here.introduced):
        assert here.masked == 0
        # The damaged operator may be a clamp, computed as if the value that it reads had not been rounded.
        assert here.introduced.gap.max_abs == pytest.approx(np.abs(change).max(), abs=0.006)
        steps = 0.006 / device.qparams[index].scale[0] if index in device.qparams else 0
        assert here.introduced.max_steps == (pytest.approx(abs(by), abs=steps) if index in device.qparams else None)
    else:  # it is unused
        assert (here.masked, here.used_mask is not None and here.used_mask[place]) == (1, False)
        assert here.masked_by


@given(NETWORKS, st.data())
def test_the_errors_that_arise_at_an_operator_add_up_to_its_value_minus_the_right_result(
    program_and_device: tuple[Program, Device], data: st.DataObject
) -> None:
    program, device = program_and_device
    index = data.draw(st.sampled_from(sorted(set(range(1, len(program.ops))) - device.hidden)))
    captured = device.capture(program, {index: lambda elements: elements + 3})
    replayed = replay(program, captured, any_error)
    values = {source: value.dequantized().astype(np.float32) for source, value in captured.items()}
    for source in sorted(device.hidden):
        values[source] = np.asarray(program.call(source, values))
    for source, operator in replayed.items():
        if program.clamped & {source, *program.sources[source]}:
            continue  # a clamp may be folded into the operator
        result = np.asarray(program.call(source, values))
        used = np.ones(result.shape, np.bool_) if operator.used_mask is None else operator.used_mask
        total = np.asarray(sum(operator.errors.values()))
        np.testing.assert_allclose(total[used], (values[source] - result)[used], atol=2e-5)
        assert not operator.errors["device"][~used].any()


@given(NETWORKS)
def test_the_inherited_error_is_that_of_the_right_result_for_the_devices_own_inputs(
    program_and_device: tuple[Program, Device],
) -> None:
    program, device = program_and_device
    captured = device.capture(program, {1: lambda elements: elements + 3})
    reference = program.run()
    replayed = replay(program, captured, any_error, lambda index: np.asarray(reference[index]))
    values = {source: value.dequantized().astype(np.float32) for source, value in captured.items()}
    for source in sorted(device.hidden):
        values[source] = np.asarray(program.call(source, values))
    for source, operator in replayed.items():
        if not operator.spans:
            result, right = np.asarray(program.call(source, values)), np.asarray(reference[source])
            used = np.ones(result.shape, np.bool_) if operator.used_mask is None else operator.used_mask
            assert asdict(operator.inherited) == nearly(gap(result[used], right[used]))


def test_values_without_dimensions_are_replayed() -> None:
    program = line(entry(np.array([1.0, -2.0, 4.0], np.float32)), mean(0), relu(1))
    replayed = replay(program, Device({}).capture(program), any_error)
    assert {index: operator.introduced.gap.mse for index, operator in replayed.items()} == {0: 0.0, 1: 0.0, 2: 0.0}


def test_the_total_error_grows_with_depth_and_the_introduced_error_does_not() -> None:
    """One bad operator in the middle of a chain that multiplies its error."""
    program = line(entry(IMAGE), *(scaled(index, 1.5) for index in range(6)))
    device = Device({index: quantization() for index in range(1, 7)})
    captured = device.capture(program, {3: lambda quantized: quantized + 40})
    replayed = replay(program, captured, any_error)
    total = [np.abs(captured[index].dequantized() - program.run()[index]).max() for index in range(1, 7)]
    assert total[2] < total[3] < total[4] < total[5]
    assert [replayed[index].introduced.max_steps for index in range(1, 7)] == [0, 0, 40, 0, 0, 0]
    assert replayed[3].introduced.gap.max_abs == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("reader", "value", "wrong", "masked"),
    [
        pytest.param([relu6(1)], [-3, 1, 2], [-61, 1, 2], True, id="below relu6"),
        pytest.param([relu6(1)], [-3, 1, 2], [-3, 1.5, 2], False, id="inside relu6"),
        pytest.param([relu6(1)], [-3, 1, 2], [1, 1, 2], False, id="from below relu6 to inside"),
        pytest.param([relu6(1)], [-3, 1, 2], [9, 1, 2], False, id="from below relu6 to above"),
        pytest.param([max_pool(1), getitem(2, 0)], [1, 5], [2, 5], True, id="passed over by a maximum"),
        pytest.param([max_pool(1), getitem(2, 0)], [1, 5], [6, 5], False, id="wins a maximum"),
        pytest.param([topk(1, 1), getitem(2, 0)], [1, 5, 3], [1, 5, 4], True, id="not among the largest"),
        pytest.param([topk(1, 2), getitem(2, 0)], [1, 5, 3], [1, 5, 4], False, id="among the largest"),
        pytest.param([sliced(1, 0, 2)], [1, 2, 3], [1, 2, 4], True, id="outside of a slice"),
        pytest.param([sliced(1, 0, 2)], [1, 2, 3], [1, 3, 3], False, id="inside a slice"),
        pytest.param([split(1), getitem(2, 0)], [1, 2], [1, 3], True, id="in an unused half"),
        pytest.param([split(1), getitem(2, 0)], [1, 2], [2, 2], False, id="in a used half"),
        pytest.param([scaled(1, 0.0)], [1, 2], [1, 3], True, id="multiplied by zero"),
        pytest.param([mean(1)], [1, 2], [1, 3], False, id="a mean"),
        pytest.param([viewed(1), mean(2)], [[1, 2], [3, 4]], [[1, 3], [3, 4]], False, id="a mean behind a view"),
        pytest.param([transposed(1), mean(2)], [[1, 2], [3, 4]], [[1, 3], [3, 4]], False, id="a transposition, a mean"),
        pytest.param([viewed(1), relu(2)], [[-1, 2]], [[-3, 2]], True, id="below a relu behind a view"),
        pytest.param([viewed(1), relu(2)], [[-1, 2]], [[-1, 3]], False, id="inside a relu behind a view"),
    ],
)
def test_an_unused_element_is_masked_by_its_readers_and_a_used_one_never(
    reader: list[Op], value: Any, wrong: Any, masked: bool
) -> None:
    program = line(entry(np.array(value, np.float32)), scaled(0, 1.0), *reader)
    captured = Device({}).capture(program, {1: lambda _: np.array(wrong, np.float32)})
    replayed = replay(program, captured, any_error)
    assert introducing(replayed) == ([] if masked else [1])
    unused = np.array(value) != np.array(wrong)
    assert replayed[1].masked == (1 if masked else 0)
    assert replayed[1].masked_by == (2,) or not masked
    assert replayed[1].used_mask is None or bool(replayed[1].used_mask[unused]) == (not masked)


def test_a_partly_used_error_is_measured_over_its_used_elements() -> None:
    value = np.array([-3.0, 1.0, 2.0, 9.0], np.float32)
    program = line(entry(value), scaled(0, 1.0), relu6(1))
    wrong = np.array([-61.0, 1.5, 2.0, 70.0], np.float32)
    replayed = replay(program, Device({}).capture(program, {1: lambda _: wrong}), any_error)[1]
    read = np.array([False, True, True, False])
    assert replayed.introduced.gap == gap(wrong[read], value[read])
    assert (replayed.introduced.elements, replayed.masked, replayed.masked_by) == (2, 2, (2,))
    assert replayed.used_mask is not None
    assert (replayed.used_mask.tolist(), replayed.errors["device"].tolist()) == (read.tolist(), [0, 0.5, 0, 0])


def folded(step_before: float, step: float) -> tuple[Program, dict[int, CapturedValue]]:
    """Return a program whose clamp is folded into the operator before it, and the values that a debug program logs."""
    program = line(entry(IMAGE), scaled(0, 1.1), relu6(1), scaled(2, 2.0))
    before, after = quantization(step_before), quantization(step)
    values = program.run()
    conv = Device({1: before}).capture(line(*program.ops[:2]))[1]
    quantized_relu = Device({2: after}).capture(line(*program.ops[:3]))[2]
    last = scaled(2, 2.0).forward(quantized_relu.dequantized().astype(np.float32))
    assert isinstance(values[2], np.ndarray)
    return program, {1: conv, 2: quantized_relu, 3: CapturedValue(elements=last, qparams=None)}


def test_a_clamp_that_is_folded_into_the_operator_before_it_introduces_no_error() -> None:
    program, captured = folded(0.25, 0.01)
    replayed = replay(program, captured, lambda *_: False)
    # With the rounding to the coarse grid between them, the clamp would be more than five steps off.
    assert np.abs(fake_quantize(IMAGE * np.float32(1.1), quantization(0.25)) - IMAGE * np.float32(1.1)).max() > 0.05
    assert (introducing(replayed), replayed[2].introduced.max_steps, replayed[2].spans) == ([], 0.0, (0, 1))


def test_a_clamp_waits_for_the_clamp_that_it_reads() -> None:
    program = line(entry(IMAGE), scaled(0, 1.1), relu6(1), relu(2), scaled(3, 2.0))
    captured = Device({1: quantization(0.25)}).capture(line(*program.ops[:2]))
    rounded = Device({2: quantization(0.3)}).capture(line(*program.ops[:3]))[2]
    last = Device({3: quantization(0.01)}).capture(line(*program.ops[:4]))[3]
    captured |= {2: rounded, 3: last, 4: CapturedValue(elements=last.dequantized(np.float32) * 2, qparams=None)}
    replayed = replay(program, captured, any_error)
    assert (introducing(replayed), replayed[2].spans, replayed[3].spans) == ([], (1,), (1, 2))
    assert replayed[3].introduced.max_steps == 0


def test_the_grid_of_an_operator_whose_clamp_is_folded_into_it_causes_no_error() -> None:
    """The compiler never rounds the value between them, although the debug program logs a rounded value."""
    program, captured = folded(0.25, 0.01)
    errors = replay(program, captured, any_error)[1].errors
    assert {cause: np.abs(error).max() for cause, error in errors.items()} == {"device": 0.0}


def test_a_wrong_clamp_introduces_error_whether_folded_or_not() -> None:
    program, captured = folded(0.25, 0.01)
    elements = captured[2].elements.copy()
    elements[0, 1] += 100
    replayed = replay(program, captured | {2: CapturedValue(elements=elements, qparams=captured[2].qparams)}, any_error)
    assert introducing(replayed)[0] == 2
    assert (replayed[2].introduced.max_steps or 0) >= 90


def test_operators_that_were_not_captured_are_spanned_by_the_next_captured_one() -> None:
    program = line(entry(IMAGE), scaled(0, 2.0), viewed(1), relu(2), scaled(3, 1.5), relu6(4))
    device = Device({}, hidden=frozenset({1, 2, 3}))
    captured = device.capture(program)
    replayed = replay(program, captured, any_error)
    # A view introduces no error, and a captured operator ends the span.
    assert {index: operator.spans for index, operator in replayed.items()} == {0: (), 4: (1, 3), 5: ()}
    wrong = captured[4].elements + np.float32(1)
    captured |= {
        4: CapturedValue(elements=wrong, qparams=None),
        5: CapturedValue(elements=np.clip(wrong, 0, 6), qparams=None),
    }
    assert introducing(replay(program, captured, any_error)) == [4]


def test_an_operator_with_several_outputs_is_spanned_unless_an_output_was_captured() -> None:
    program = line(entry(IMAGE), max_pool(0), getitem(1, 0), relu(2))
    hidden = replay(program, Device({}, hidden=frozenset({2})).capture(program), any_error)
    assert hidden[3].spans == (1,)
    captured = replay(program, Device({}).capture(program), any_error)
    assert (captured[2].spans, captured[3].spans) == ((), ())


def test_constants_are_never_spanned() -> None:
    program = line(entry(IMAGE), constant(np.float32(2)), relu(1), added(0, 2))
    replayed = replay(program, Device({}, hidden=frozenset({2})).capture(program), any_error)
    # The relu of a constant is not marked as a constant itself.
    assert replayed[3].spans == (2,)
    folded = Op(reads=(1,), forward=relu(1).forward, constant=True)
    program = line(entry(IMAGE), constant(np.float32(2)), folded, added(0, 2))
    replayed = replay(program, Device({}).capture(program), any_error)
    assert (sorted(replayed), replayed[3].spans, introducing(replayed)) == ([0, 3], (), [])


def test_an_operator_that_the_host_cannot_compute_is_left_out_with_a_reason() -> None:
    program = line(entry(IMAGE), refused(0, "no such kernel"), relu(1), scaled(2, 2.0))
    captured = Device({}).capture(program)
    replayed = replay(program, captured, any_error)
    # Its readers are computed from the device's own value.
    assert (sorted(replayed), introducing(replayed), program.refusals) == ([0, 2, 3], [], {1: "no such kernel"})
    del captured[1]
    replayed = replay(program, captured, any_error)
    assert sorted(replayed) == [0, 3]
    assert program.refusals == {1: "no such kernel", 2: "reads operator 1, which has no value"}


def test_the_indices_of_topk_are_compared_as_integers() -> None:
    program = line(entry(IMAGE), topk(0, 2), getitem(1, 0), getitem(1, 1), gathered(0, 3), added(2, 4))
    captured = Device({}).capture(program)
    narrow = CapturedValue(elements=captured[3].elements.astype(np.int32), qparams=None)
    assert introducing(replay(program, captured | {3: narrow}, any_error)) == []
    captured = Device({}).capture(program, {3: lambda positions: positions[:, ::-1].copy()})
    replayed = replay(program, captured, any_error)
    assert introducing(replayed) == [3]
    assert (replayed[3].introduced.differing, replayed[3].introduced.max_steps, replayed[3].masked) == (4, 1.0, 0)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_booleans_are_wrong_one_by_one(dtype: type) -> None:
    program = line(entry(IMAGE), above(0, 1.0), scaled(0, 2.0), chosen(1, 0, 2))
    captured = Device({}).capture(program)
    same = CapturedValue(elements=captured[1].elements.astype(dtype), qparams=None)
    assert introducing(replay(program, captured | {1: same}, any_error)) == []
    other = np.logical_xor(captured[1].elements, [[True, False, False, False], [False] * 4])
    wrong = Device({}).capture(program, {1: lambda _: other})
    replayed = replay(program, wrong | {1: CapturedValue(elements=other.astype(dtype), qparams=None)}, any_error)
    assert introducing(replayed) == [1]
    introduced = replayed[1].introduced
    assert (introduced.differing, introduced.elements, introduced.gap.max_abs, replayed[1].masked) == (1, 8, 1.0, 0)


def test_the_use_of_elements_is_determined_for_every_operator() -> None:
    program = line(entry(IMAGE), scaled(0, 1.0), relu6(1))
    captured = Device({}).capture(program, {1: lambda x: np.where(x < 0, np.float32(-61), x)})
    replayed = replay(program, captured, lambda *_: False)[1]
    assert replayed.used_mask is not None
    assert (replayed.masked, replayed.used_mask.tolist()) == (2, ((IMAGE > 0) & (IMAGE < 6)).tolist())
    assert (replayed.introduced.elements, replayed.introduced.gap.max_abs) == (4, 0.0)


def test_a_program_without_captures_gives_no_results() -> None:
    assert replay(line(entry(IMAGE), relu(0)), {}, any_error) == {}
