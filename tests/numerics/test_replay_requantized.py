"""The replay of operators whose inputs the device converted to another grid, and the error of such a conversion."""

from __future__ import annotations

import numpy as np

from tasks.numerics.element_use import CapturedValue
from tasks.numerics.replay import Introduced, conversion_error, replay, values_for
from tasks.records import Gap
from tests.numerics.numpy_graph import Program, entry, logged, matmul, quantization, scaled


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
    program, captured, converted = requantized_for_a_matmul(8)
    without = replay(program, captured, any_error)[2]
    assert (without.steps, round(without.gap.snr_db or 0)) == (290, 40)  # the reader's own input is not known
    introduced = replay(program, captured, any_error, {(2, 1): converted})
    assert [index for index, operator in introduced.items() if any_error(index, operator)] == []
    assert {index: operator.steps for index, operator in introduced.items()} == {0: None, 1: 0, 2: 0, 3: 0}


def test_a_wrong_reader_of_a_requantized_value_introduces_its_own_error() -> None:
    program, captured, converted = requantized_for_a_matmul(8)
    damaged = captured[2].elements.copy()
    damaged[3, 5] += 50
    captured[2] = CapturedValue(elements=damaged, qparams=captured[2].qparams)
    introduced = replay(program, captured, any_error, {(2, 1): converted})
    assert [index for index, operator in introduced.items() if any_error(index, operator)] == [2]
    assert introduced[2].steps == 50


def test_a_requantized_value_stands_for_a_source_that_was_not_captured() -> None:
    program, captured, converted = requantized_for_a_matmul(8)
    del captured[1]
    introduced = replay(program, captured, any_error, {(2, 1): converted})
    assert {index: (operator.steps, operator.spans) for index, operator in introduced.items() if index > 1} == {
        2: (0, ()),
        3: (introduced[3].steps, (1,)),
    }


def test_a_requantized_value_is_used_by_its_reader_only_and_in_the_type_of_the_value() -> None:
    value, converted = (
        np.array([1.0, 2.0], np.float32),
        CapturedValue(elements=np.array([3, 5]), qparams=quantization(0.5)),
    )
    values = {0: value, 1: value}
    assert values_for(3, (0, 1), values, {(2, 1): converted}) is values
    changed = values_for(2, (0, 1), values, {(2, 1): converted})
    assert changed[0] is value
    assert (np.asarray(changed[1]).dtype, np.asarray(changed[1]).tolist()) == (np.float32, [1.5, 2.5])


def test_a_conversion_introduces_the_difference_from_the_source_rounded_to_the_new_grid() -> None:
    source, qparams = np.array([0.1, 0.9, -1.4, 9.0]), quantization(0.5, bits=4)  # -4 to 3.5
    right = CapturedValue(elements=np.array([0, 2, -3, 7]), qparams=qparams)
    assert conversion_error(right, source) == Introduced(
        gap=Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, cosine=1.0), steps=0
    )
    wrong = CapturedValue(elements=np.array([0, 4, -3, 7]), qparams=qparams)
    error = conversion_error(wrong, source)
    assert (error.steps, error.gap.max_abs, error.gap.mse) == (2, 1.0, 0.25)
