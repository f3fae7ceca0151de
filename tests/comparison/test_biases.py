"""The least scale of a weight with which a 32-bit bias fits, computed by hand."""

from __future__ import annotations

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
LARGEST_BIAS = 2**30


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


def test_the_largest_bias_just_fits_with_the_least_scale_and_not_with_less(tmp_path: Path) -> None:
    bias = np.array([100.0, -200.0], np.float32)
    (use,) = uses(np.array([[1.0], [1e-9]], np.float32), bias, tmp_path)
    assert use.operator_index == 3
    for scale, step in ((use.least_scale, 2.0), (use.least_scale_16, 510.0 / 65535)):
        assert np.float32(200.0 / (scale * step)) <= np.float32(LARGEST_BIAS)
        assert 200.0 / (0.999 * scale * step) > LARGEST_BIAS


def test_a_layer_that_reads_an_input_of_the_model_has_the_grid_of_the_input(tmp_path: Path) -> None:
    store = Store(tmp_path)
    operators = (
        replace(CONV, index=0, name="w", target=DEQUANTIZE, constant=True, source_nodes=("w",), sources=()),
        replace(CONV, index=1, name="b", target=DEQUANTIZE, constant=True, source_nodes=("b",), sources=()),
        replace(CONV, index=2, name="conv", sources=(0, 1)),
    )
    floats = {"w": np.ones((2, 1), np.float32), "b": np.array([3.0, -1.0], np.float32)}
    quantized = replace(QUANTIZED_METHOD, float_weights=store.put_bytes(save(floats)))
    method = replace(LOWERED_METHOD, quantized=quantized, operators=operators, input_qparams=(INPUT,))
    (use,) = bias_uses(method, store)
    assert use.least_scale == pytest.approx(1.5 / LARGEST_BIAS)


def test_without_a_bias_every_scale_fits(tmp_path: Path) -> None:
    (use,) = uses(np.ones((2, 1), np.float32), np.zeros(2, np.float32), tmp_path)
    assert (use.least_scale, use.least_scale_16) == (0.0, 0.0)


def test_an_operator_whose_input_has_no_grid_has_no_bias_use(tmp_path: Path) -> None:
    assert uses(np.ones((1, 1), np.float32), np.ones(1, np.float32), tmp_path, qparams=None) == []


def test_a_norm_has_no_bias_use_because_its_weight_has_one_axis(tmp_path: Path) -> None:
    assert uses(np.ones(4, np.float32), np.ones(4, np.float32), tmp_path) == []
