"""The range that a 32-bit bias would need: computed by hand, and against the rounding of PyTorch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from qnnsweep.tasks.comparison.biases import bias_uses
from qnnsweep.tasks.records import BiasUse, Quantization
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import CONV, LOWERED_METHOD, QUANTIZED_METHOD

INPUT = Quantization(scale=(2.0,), zero_point=(0,), quant_min=0, quant_max=255, dtype="uint8", axis=None)
DEQUANTIZE = "quantized_decomposed.dequantize_per_channel.default"
STEP = 510.0 / 65535 / 32767  # of a bias, for a largest weight of 1


def uses(
    weight: NDArray[np.float32], bias: NDArray[np.float32], folder: Path, qparams: Quantization | None = INPUT
) -> list[BiasUse]:
    """Return the bias uses of a convolution of a value on the grid `qparams`."""
    store = Store(folder)
    operators = (
        replace(CONV, index=0, name="input", quantization=qparams, sources=()),
        replace(CONV, index=1, name="w", target=DEQUANTIZE, constant=True, source_nodes=("w",), sources=()),
        replace(CONV, index=2, name="b", target=DEQUANTIZE, constant=True, source_nodes=("b",), sources=()),
        replace(CONV, index=3, name="conv", sources=(0, 1, 2)),
    )
    quantized = replace(QUANTIZED_METHOD, float_weights=store.put_bytes(save({"w": weight, "b": bias})))
    return list(bias_uses(replace(LOWERED_METHOD, quantized=quantized, operators=operators), store))


def test_a_channel_with_small_weights_has_little_range_for_its_bias(tmp_path: Path) -> None:
    weight = np.array([[[[1.0]]], [[[-0.001]]]], np.float32)
    (use,) = uses(weight, np.array([100.0, -2.0], np.float32), tmp_path)
    assert (use.operator_index, use.channels) == (3, 2)
    assert use.per_channel == pytest.approx(2.0 / (STEP * 0.001 * 2**31), rel=1e-6), "3.9 times the range"
    assert use.per_tensor == pytest.approx(100.0 / (STEP * 2**31), rel=1e-6), "a fifth of the range"


def test_a_bias_of_more_than_the_range_is_clipped_by_pytorch_and_one_of_less_is_not(tmp_path: Path) -> None:
    for bias, clipped in ((509.0, False), (511.0, True)):
        (use,) = uses(np.ones((1, 1), np.float32), np.array([bias], np.float32), tmp_path)
        rounded = np.clip(round(bias / STEP), -(2**31), 2**31 - 1) * STEP
        assert (use.per_tensor > 1) == (use.per_channel > 1) == clipped == (abs(rounded - bias) > 0.5)


def test_a_channel_without_weights_fits_no_bias_but_zero(tmp_path: Path) -> None:
    weight = np.array([[1.0], [0.0]], np.float32)
    assert [use.per_channel for use in uses(weight, np.array([0.0, 0.1], np.float32), tmp_path)] == [math.inf]
    assert [use.per_channel for use in uses(weight, np.array([0.0, 0.0], np.float32), tmp_path)] == [0.0]
    assert [use.per_tensor for use in uses(0 * weight, np.array([0.0, 0.1], np.float32), tmp_path)] == [math.inf]


def test_an_operator_whose_input_has_no_grid_has_no_bias_use(tmp_path: Path) -> None:
    assert uses(np.ones((1, 1), np.float32), np.ones(1, np.float32), tmp_path, qparams=None) == []


def test_a_norm_has_no_bias_use_because_its_weight_has_one_axis(tmp_path: Path) -> None:
    assert uses(np.ones(4, np.float32), np.ones(4, np.float32), tmp_path) == []
