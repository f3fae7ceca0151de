"""The replay of operators whose inputs the device converted to another grid, and the error of such a conversion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qnnsweep.tasks.numerics.dequantize import quantize
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.introduced import Introduced
from qnnsweep.tasks.numerics.replay import converted
from qnnsweep.tasks.numerics.replay import replay as replay_with_errors
from tests.numerics.numpy_device import Device, logged, quantization, replay
from tests.numerics.numpy_graph import Program, entry, matmul, scaled


def any_error(_: int, introduced: Introduced) -> bool:
    return bool(introduced.gap.max_abs) or introduced.nonfinite > 0


def requantized_for_a_matmul(bits: int) -> tuple[Program, dict[int, CapturedValue], CapturedValue]:
    """Return a program, and what a device logs that converts the matmul's input to another grid before the matmul.

    The third value is the converted value. The device computes the matmul from this value, and computes it right.
    """
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 64)).astype(np.float32)
    weight = (random.standard_normal((64, 64)) / 8).astype(np.float32)
    program = Program([entry(x), scaled(0, 1.0), matmul(1, weight), scaled(1, 2.0)], [2, 3])
    right = program.run()[2]
    assert isinstance(right, np.ndarray)
    scaled_value = logged(x, quantization(4.5 / 32767))
    converted = logged(scaled_value.dequantized(), quantization(4.5 / (2 ** (bits - 1) - 1), bits=bits))
    product = converted.dequantized().astype(np.float32) @ weight
    captured = {
        0: CapturedValue(elements=x, qparams=None),
        1: scaled_value,
        2: logged(product, quantization(float(np.abs(right).max()) / 32767)),
        3: logged(scaled_value.dequantized() * 2, quantization(9 / 32767)),
    }
    return program, captured, converted


def test_a_reader_of_a_requantized_value_introduces_no_error() -> None:
    program, captured, value = requantized_for_a_matmul(8)
    without = replay(program, captured, any_error)[2].introduced
    assert (without.max_steps, round(without.gap.snr_db or 0)) == (290, 40)  # the reader's own input is not known
    replayed = replay(program, captured, any_error, requantized={(2, 1): value})
    assert [index for index, operator in replayed.items() if any_error(index, operator.introduced)] == []
    assert {index: operator.introduced.max_steps for index, operator in replayed.items()} == {0: None, 1: 0, 2: 0, 3: 0}


def test_the_error_of_a_conversion_arises_at_the_reader_as_resolution() -> None:
    program, captured, value = requantized_for_a_matmul(8)
    errors = replay(program, captured, any_error, requantized={(2, 1): value})[2].errors
    plain = captured[1].dequantized().astype(np.float32)
    weight = program.ops[2].forward(np.eye(64, dtype=np.float32))
    conversion = (value.dequantized() - plain).astype(np.float32) @ weight
    np.testing.assert_allclose(errors["resolution"], conversion, atol=2e-4)
    assert not errors["device"].any()


def test_a_wrong_reader_of_a_requantized_value_introduces_its_own_error() -> None:
    program, captured, value = requantized_for_a_matmul(8)
    damaged = captured[2].elements.copy()
    damaged[3, 5] += 50
    captured[2] = CapturedValue(elements=damaged, qparams=captured[2].qparams)
    replayed = replay(program, captured, any_error, requantized={(2, 1): value})
    assert [index for index, operator in replayed.items() if any_error(index, operator.introduced)] == [2]
    assert replayed[2].introduced.max_steps == 50


def test_a_requantized_value_stands_for_a_source_that_was_not_captured() -> None:
    program, captured, value = requantized_for_a_matmul(8)
    del captured[1]
    replayed = replay(program, captured, lambda *_: False, requantized={(2, 1): value})
    assert {index: operator.spans for index, operator in replayed.items() if index > 1} == {2: (), 3: (1,)}
    assert replayed[2].introduced.max_steps == 0


def test_a_conversion_introduces_the_difference_from_the_source_rounded_to_the_new_grid() -> None:
    source, qparams = np.array([0.1, 0.9, -1.4, 9.0]), quantization(0.5, bits=4)  # -4 to 3.5
    right = converted(CapturedValue(elements=np.array([0, 2, -3, 7]), qparams=qparams), source)
    assert (right.introduced.max_steps, right.introduced.gap.max_abs) == (0, 0.0)
    assert right.grid_use is not None
    assert (right.grid_use.clipped_elements, right.grid_use.codes_used) == (1, 4)
    wrong = converted(CapturedValue(elements=np.array([0, 4, -3, 7]), qparams=qparams), source).introduced
    assert (wrong.max_steps, wrong.gap.max_abs, wrong.gap.mse) == (2, 1.0, 0.25)


def test_the_clipping_of_a_conversion_and_its_wrong_elements_are_separate_causes() -> None:
    program, captured, _ = requantized_for_a_matmul(8)
    plain, weight = captured[1].dequantized().astype(np.float32), program.ops[2].forward(np.eye(64, dtype=np.float32))
    narrow = logged(plain, quantization(1.0 / 127, bits=8))
    elements = narrow.elements.copy()
    elements[0, 0] -= 9
    wrong = CapturedValue(elements=elements, qparams=narrow.qparams)
    product = wrong.dequantized().astype(np.float32) @ weight
    assert captured[2].qparams is not None
    captured[2] = logged(product, captured[2].qparams)
    errors = replay(program, captured, any_error, requantized={(2, 1): wrong})[2].errors
    assert set(errors) == {"clipping", "resolution", "device"}
    clipped = np.clip(plain, -128 / 127, 1.0)
    np.testing.assert_allclose(errors["clipping"], (clipped - plain) @ weight, atol=0.02)
    np.testing.assert_allclose(
        errors["device"], (wrong.dequantized() - narrow.dequantized()).astype(np.float32) @ weight, atol=2e-4
    )


def test_a_wrong_log_is_contradicted_by_a_right_conversion() -> None:
    program, captured, value = requantized_for_a_matmul(16)
    captured[1] = CapturedValue(elements=np.roll(captured[1].elements, 1, 1), qparams=captured[1].qparams)
    requantized = {(2, 1): value, (3, 1): logged(np.asarray(program.run()[1]), quantization(4.5 / 32767))}
    replayed = replay(program, captured, beyond_two_steps, requantized=requantized)
    assert {index: operator.contradicted for index, operator in replayed.items()} == {
        0: False, 1: True, 2: False, 3: False,
    }  # fmt: skip
    assert "device" not in replayed[1].errors
    assert float(np.abs(replayed[2].errors["resolution"]).max()) < 1e-3


def test_a_wrong_log_of_floats_is_contradicted_by_a_reader_that_rounds_them() -> None:
    program, captured, value = requantized_for_a_matmul(16)
    assert value.qparams is not None
    captured[1] = CapturedValue(elements=np.roll(captured[1].dequantized(np.float32), 1, 1), qparams=None)
    rounded = quantize(captured[1].elements, value.qparams)
    inferred = CapturedValue(elements=rounded, qparams=value.qparams, inferred=True)
    replayed = replay(program, captured, beyond_two_steps, requantized={(2, 1): inferred, (3, 1): inferred})
    assert {index: operator.contradicted for index, operator in replayed.items()} == {
        0: False, 1: True, 2: False, 3: False,
    }  # fmt: skip
    assert float(np.abs(replayed[2].errors["device"]).max()) < 1e-3


def beyond_two_steps(_: int, introduced: Introduced) -> bool:
    if introduced.max_steps is None:  # a value without a grid
        return (introduced.gap.max_abs or 0) > 0.1
    return introduced.max_steps > 2


def test_a_conversion_without_dimensions_gives_its_reader_an_array() -> None:
    read: list[object] = []
    doubled = scaled(0, 2.0)
    watched = replace(doubled, forward=lambda x: (read.append(x), doubled.forward(x))[1])
    program = Program([entry(np.asarray(3.0, np.float32)), watched], [1])
    captured = Device({0: quantization(0.01), 1: quantization(0.1)}).capture(program)
    clipped = logged(np.asarray(3.0, np.float32), quantization(0.01, bits=8))
    read.clear()
    run = DeviceRun(program, captured, {(1, 0): clipped})
    errors = replay_with_errors(run, any_error, lambda _: None, FloatConstants(), with_errors=True)[1].errors
    assert {type(value) for value in read} == {np.ndarray}
    assert float(errors["clipping"]) == np.float32(2 * (1.27 - 3.0))
