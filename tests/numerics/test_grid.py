"""The error that a device's grid causes: clipping and resolution."""

from __future__ import annotations

import numpy as np
import pytest

from qnnsweep.tasks.numerics.dequantize import fake_quantize
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.grid import GridUse, grid_errors, grid_use
from qnnsweep.tasks.numerics.metrics import gap
from qnnsweep.tasks.records import Quantization
from tests.numerics.judged import IMAGE, any_error
from tests.numerics.numpy_device import Device, quantization, replay
from tests.numerics.numpy_graph import entry, line, scaled


def test_a_value_that_saturates_on_the_grid_is_no_introduced_error() -> None:
    """The expected value is one that the device can represent."""
    narrow = quantization(0.01, 0, bits=8)
    program = line(entry(IMAGE), scaled(0, 100.0), scaled(1, 1.0))
    captured = Device({1: narrow}).capture(program)
    assert captured[1].elements.max() == 127
    replayed = replay(program, captured, any_error)[1]
    assert replayed.introduced.max_steps == 0
    # All elements, times 100, are beyond the ends of the grid, -1.28 and 1.27.
    assert replayed.grid_use is not None
    assert (replayed.grid_use.clipped_elements, replayed.grid_use.codes_used) == (8, 2)
    assert replayed.grid_use.range_used == pytest.approx(1150 / 2.55)
    assert {cause: np.count_nonzero(error) for cause, error in replayed.errors.items()} == {
        "device": 0,
        "resolution": 0,
        "clipping": 8,
    }


BYTES = quantization(0.5, 3, bits=8)
PER_CHANNEL = Quantization(scale=(1.0, 0.01), zero_point=(0, 0), axis=0, quant_min=-128, quant_max=127, dtype="int8")


def use(value: Array, qparams: Quantization, used: Array | None = None) -> GridUse | None:
    captured = Device({0: qparams}).capture(line(entry(value)))[0]
    return grid_use(captured, value, fake_quantize(value, qparams), used)


def test_the_use_of_a_grid_counts_clipped_elements_and_codes() -> None:
    # The grid is from -65.5 to 62.
    value = np.array([-70.0, -65.6, 0.1, 0.2, 0.3, 62.2, 63.0], np.float32)
    assert use(value, BYTES) == GridUse(
        gap=gap(fake_quantize(value, BYTES), value),
        clipped_elements=2,
        codes_used=4,
        range_used=pytest.approx(133 / 127.5),
        least=-70.0,
        largest=63.0,
        needed=(-70.0, 63.0),
    )


def test_unused_and_infinite_elements_do_not_use_the_grid() -> None:
    value = np.array([-70.0, 0.1, 1.0, np.inf, -np.inf], np.float32)
    used = np.array([False, True, True, True, True])
    finite = value[1:3]
    assert use(value, BYTES, used) == GridUse(
        gap=gap(fake_quantize(finite, BYTES), finite),
        clipped_elements=0,
        codes_used=2,
        range_used=pytest.approx(0.9 / 127.5),
        least=pytest.approx(0.1),
        largest=1.0,
        needed=(pytest.approx(0.1), 1.0),
    )
    assert use(value, BYTES, np.zeros(5, np.bool_)) is None
    assert grid_use(CapturedValue(elements=value, qparams=None), value, value, None) is None


@pytest.mark.parametrize(("used", "needed"), [(None, (-9.0, 80.0)), ((True, False, True), (-9.0, 2.0))])
def test_a_grid_should_hold_the_value_and_the_elements_of_the_reference_that_are_used_and_finite(
    used: tuple[bool, ...] | None, needed: tuple[float, float]
) -> None:
    value, reference = np.array([0.0, 1.0, 2.0], np.float32), np.array([-9.0, 80.0, -np.inf], np.float32)
    captured = Device({0: BYTES}).capture(line(entry(value)))[0]
    mask = None if used is None else np.array(used)
    found = grid_use(captured, value, fake_quantize(value, BYTES), None, reference, mask)
    assert found is not None
    assert (found.least, found.largest, found.needed) == (0.0, 2.0, needed)
    assert (found.clipped_elements, found.range_used) == (0, pytest.approx(2 / 127.5))


def test_an_element_is_clipped_if_it_is_beyond_the_grid_of_its_own_channel() -> None:
    value = np.array([[1.5, 127.4], [1.5, 1.27]], np.float32)
    rounded = fake_quantize(value, PER_CHANNEL)
    used = use(value, PER_CHANNEL)
    # 1.5 is rounded to 2 in the first channel, and clipped to 1.27 in the second.
    assert used is not None
    assert used.clipped_elements == 1
    errors = grid_errors(value, rounded, PER_CHANNEL)
    assert errors["clipping"].tolist() == [[0, 0], [pytest.approx(-0.23), 0]]
    assert errors["resolution"].tolist() == [[0.5, pytest.approx(-0.4, abs=1e-5)], [0, pytest.approx(0, abs=1e-6)]]


def test_clipping_and_resolution_add_up_to_the_error_of_rounding() -> None:
    value = np.linspace(-80, 80, 999, dtype=np.float32)
    rounded = fake_quantize(value, BYTES)
    errors = grid_errors(value, rounded, BYTES)
    np.testing.assert_array_equal(sum(errors.values()), (rounded - value).astype(np.float32))
    assert np.abs(errors["resolution"]).max() <= 0.25
    assert set(grid_errors(value / 2, fake_quantize(value / 2, BYTES), BYTES)) == {"resolution"}
