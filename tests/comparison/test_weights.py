"""The rounding errors of weights, and the weights that were not rounded from the tensor of their name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from qnnsweep.tasks.comparison.weights import WeightErrors, weight_errors
from qnnsweep.tasks.storage.store import Store
from tests.numerics.numpy_graph import Program, constant, entry
from tests.sample_records import CONV, LOWERED_METHOD, QUANTIZED_METHOD

WEIGHT = np.array([[1.0, -2.0, 0.25], [4.0, 0.5, -8.0], [2.0, -0.125, 3.0]], np.float32)
ROUNDED = np.round(WEIGHT)
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"


def errors_of_constant(
    rounded: NDArray[Any], floats: dict[str, NDArray[Any]], folder: Path, *sources: str
) -> WeightErrors:
    """Return the errors of one operator that dequantizes `rounded` and descends from the nodes `sources`."""
    store = Store(folder)
    operator = replace(CONV, index=1, name="dequantize", target=DEQUANTIZE, constant=True, source_nodes=sources)
    quantized = replace(QUANTIZED_METHOD, float_weights=store.put_bytes(save(floats)))
    lowered = replace(LOWERED_METHOD, quantized=quantized, operators=(CONV, operator))
    return weight_errors(lowered, store, Program([entry([0.0]), constant(rounded)], [1]))


def test_the_error_is_the_rounded_weight_minus_the_float_weight(tmp_path: Path) -> None:
    errors = errors_of_constant(ROUNDED, {"a": WEIGHT, "b": -WEIGHT}, tmp_path, "a")
    assert errors.unknown == ()
    assert {index: error.tolist() for index, error in errors.by_operator.items()} == {
        1: [[0.0, 0.0, -0.25], [0.0, -0.5, 0.0], [0.0, 0.125, 0.0]]
    }


@pytest.mark.parametrize("shape", [(3, 3, 1, 1), (3, 1, 3, 1), (3, 1, 3), (1, 3, 3)])
def test_a_pass_may_add_dimensions_of_one_to_a_weight(shape: tuple[int, ...], tmp_path: Path) -> None:
    errors = errors_of_constant(ROUNDED.reshape(shape), {"a": WEIGHT}, tmp_path, "a")
    assert (errors.unknown, {index: error.shape for index, error in errors.by_operator.items()}) == ((), {1: shape})


def test_a_bias_that_overflows_to_the_other_sign_has_an_error(tmp_path: Path) -> None:
    errors = errors_of_constant(
        np.array([-5.0, 1.0], np.float32), {"a": np.array([7.0, 1.25], np.float32)}, tmp_path, "a"
    )
    assert errors.unknown == ()
    assert {index: error.tolist() for index, error in errors.by_operator.items()} == {1: [-12.0, -0.25]}


@pytest.mark.parametrize(
    ("rounded", "floats", "sources"),
    [
        (ROUNDED, {"a": WEIGHT}, ("b",)),
        (ROUNDED, {"a": WEIGHT}, ()),
        (ROUNDED, {"a": WEIGHT, "b": WEIGHT}, ("a", "b")),
        (ROUNDED, {"a": WEIGHT[:, :2].copy()}, ("a",)),
        (ROUNDED, {"a": WEIGHT.T.copy()}, ("a",)),
        (ROUNDED, {"a": -WEIGHT}, ("a",)),
    ],
    ids=["another name", "no ancestor", "two ancestors", "another shape", "transposed", "another weight"],
)
def test_a_weight_that_was_not_rounded_from_the_stored_tensor_is_named(
    rounded: NDArray[Any], floats: dict[str, NDArray[Any]], sources: tuple[str, ...], tmp_path: Path
) -> None:
    errors = errors_of_constant(rounded, floats, tmp_path, *sources)
    assert errors == WeightErrors(by_operator={}, unknown=("dequantize",))
