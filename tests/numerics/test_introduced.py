"""The measures of an operator's own error."""

from __future__ import annotations

import numpy as np
import pytest

from qnnsweep.tasks.numerics.dequantize import dequantize, fake_quantize
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.introduced import Difference, introduced_error
from qnnsweep.tasks.numerics.metrics import gap
from qnnsweep.tasks.records import Gap, Quantization
from tests.numerics.judged import IMAGE, any_error, introducing
from tests.numerics.numpy_device import Device, quantization, replay
from tests.numerics.numpy_graph import entry, line, relu6, scaled

NOTHING = Gap(mse=0.0, mean_abs=0.0, max_abs=0.0)


def test_each_channel_has_its_own_step() -> None:
    fine = Quantization(
        scale=(0.01, 1.0), zero_point=(3, -5), axis=0, quant_min=-(2**15), quant_max=2**15 - 1, dtype="int16"
    )
    program = line(entry(IMAGE), scaled(0, 1.0), scaled(1, 2.0))
    device = Device({1: fine})
    assert introducing(replay(program, device.capture(program), any_error)) == []
    replayed = replay(
        program, device.capture(program, {1: lambda quantized: quantized + np.array([[7], [2]])}), any_error
    )
    assert introducing(replayed) == [1]
    assert (replayed[1].introduced.max_steps, replayed[1].introduced.gap.max_abs) == (7.0, 2.0)


NONFINITE = [
    ([np.nan, 1.0], 1, NOTHING), ([np.inf, 1.0], 1, NOTHING), ([np.inf, 1.5], 1, None), ([1.0, 1.0], 0, NOTHING),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "count", "rest"), NONFINITE)
def test_infinities_and_nans_are_counted_and_the_finite_rest_is_measured(
    wrong: list[float], count: int, rest: Gap | None
) -> None:
    program = line(entry(np.ones(2, np.float32)), scaled(0, 1.0))
    captured = Device({}).capture(program, {1: lambda _: np.array(wrong, np.float32)})
    introduced = replay(program, captured, lambda *_: False)[1].introduced
    assert introduced.nonfinite == count
    if rest is None:
        assert introduced.gap == gap(np.array([1.5]), np.array([1.0]))
    else:
        assert (introduced.gap.mse, introduced.gap.max_abs) == (rest.mse, rest.max_abs)


@pytest.mark.parametrize(("value", "count"), [([np.nan, np.inf, -np.inf, 2.0], 0), ([np.inf, np.nan, np.inf, 2.0], 3)])
def test_an_infinity_that_the_reference_has_too_is_not_introduced(value: list[float], count: int) -> None:
    program = line(entry(np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)), scaled(0, 1.0))
    captured = Device({}).capture(program, {1: lambda _: np.array(value, np.float32)})
    introduced = replay(program, captured, any_error)[1].introduced
    assert (introduced.nonfinite, introduced.gap.max_abs) == (count, 0.0)


GRID = Quantization(scale=(0.5,), zero_point=(0,), axis=None, dtype="uint8", quant_min=0, quant_max=255)


@pytest.mark.parametrize(
    ("device", "host", "equal"),
    [
        (CapturedValue(elements=np.array([1, 2, 3, 4], np.uint8), qparams=GRID), [0.5, 1.2, 1.5, 2.5], 0.75),
        (CapturedValue(elements=np.array([1, 2, 3, 4], np.int64), qparams=None), [1, 2, 0, 0], 0.5),
        (CapturedValue(elements=np.float32([0.1, 0.2, np.inf]), qparams=None), [0.1, 0.3, np.inf], 0.5),
        (CapturedValue(elements=np.float32([0.1, np.nan, 0.2]), qparams=None), [0.1, 0.3, 0.2], 2 / 3),
        # A float16 keeps its code if its conversion to float32 is off by 1.2e-7.
        (CapturedValue(elements=np.float32([0.1 * (1 + 1e-7), 0.2]), qparams=None, half=True), [0.1, 0.3], 0.5),
    ],
)
def test_the_share_of_equal_codes(device: CapturedValue, host: list[float], equal: float) -> None:
    dtype = device.elements.dtype if device.qparams is None else np.float32
    introduced = introduced_error(Difference.between(device, np.array(host, dtype)))
    assert introduced.equal == pytest.approx(equal)


def test_an_infinity_that_a_clamp_cuts_off_is_masked() -> None:
    program = line(entry(np.array([7.0, 1.0], np.float32)), scaled(0, 1.0), relu6(1))
    captured = Device({}).capture(program, {1: lambda _: np.array([np.inf, 1.0], np.float32)})
    replayed = replay(program, captured, any_error)[1]
    introduced = replayed.introduced
    assert (introduced.nonfinite, replayed.masked, replayed.masked_by, introduced.gap.max_abs) == (0, 1, (2,), 0.0)


def test_the_expected_value_is_one_that_the_device_can_represent() -> None:
    coarse = quantization(0.5, 3)
    program = line(entry(IMAGE), scaled(0, 1.1))
    captured = {
        0: CapturedValue(elements=IMAGE, qparams=None),
        1: CapturedValue(elements=np.full((2, 4), 3), qparams=coarse),
    }
    expected = fake_quantize(IMAGE * np.float32(1.1), coarse)
    introduced = replay(program, captured, any_error)[1].introduced
    assert introduced.gap == gap(dequantize(captured[1].elements, coarse), expected)
    assert introduced.max_steps == np.abs(expected / 0.5).max()
