"""The final outputs and the logged values of their producers: exchanged, stale, mis-bound and right outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.bindings import Bound, Others, check_bindings, worst_bindings

Array = NDArray[Any]
VALUES = np.array([[0.9, 0.7, 0.4, 0.2]], np.float32)
INDICES = np.array([[6, 4, 11, 10]], np.int32)
OTHER = np.array([[5.0, -1.0, 2.0, 3.0]], np.float32)
NONE = Others(earlier=(), operators={})


def in_buffer(values: Array, dtype: str, size: int) -> Array:
    """Return the elements that a buffer of this type and size has after the bytes of `values` were written to it."""
    content = np.ascontiguousarray(values).tobytes()
    length = size * np.dtype(dtype).itemsize
    return np.frombuffer(content[:length].ljust(length, b"\0"), dtype).reshape(1, size)


def bound(name: str, output: Array, logged: Array | None, reference: Array) -> Bound:
    return Bound(name=name, producer=f"op_{name}", output=output, logged=logged, shipped=output, reference=reference)


def results(outputs: list[Bound], others: Others = NONE) -> list[tuple[str, str | None]]:
    checks = check_bindings(0, outputs, dict.fromkeys(range(len(outputs)), others))
    return [(check.status, check.detail) for check in checks]


def test_values_and_indices_in_the_buffers_of_each_other_are_exchanged() -> None:
    values = bound("values", in_buffer(INDICES, "float32", 4), VALUES.astype(np.float64), VALUES)
    indices = bound("index", in_buffer(VALUES, "int64", 4), INDICES, INDICES.astype(np.int64))
    assert results([values, indices]) == [
        ("failed", "exchanged with output index"), ("failed", "exchanged with output values"),
    ]  # fmt: skip
    right = replace(indices, output=INDICES.astype(np.int64), shipped=INDICES.astype(np.int64))
    assert results([replace(values, output=VALUES, shipped=VALUES), right]) == [("passed", None)] * 2


@pytest.mark.parametrize(
    ("output", "others", "status", "detail"),
    [
        (OTHER, Others(earlier=(OTHER,), operators={}), "failed", "stale: it is the value of the sample before"),
        (
            OTHER,
            Others(earlier=(2 * VALUES, OTHER), operators={}),
            "failed",
            "stale: it is the value of 2 samples before",
        ),
        (OTHER, Others(earlier=(), operators={"relu": OTHER}), "failed", "mis-bound: it is the value of relu"),
        (in_buffer(VALUES.astype(np.float16), "float32", 4), NONE, "failed", "its bytes are float16"),
        (OTHER, NONE, "failed", None),
        (VALUES * 1.001, NONE, "passed", None),
        (VALUES * 1.05, NONE, "unclear", None),
    ],
)
def test_an_output_that_is_not_the_value_of_its_producer_is_explained(
    output: Array, others: Others, status: str, detail: str | None
) -> None:
    assert results([bound("y", output, VALUES.astype(np.float64), VALUES)], others) == [(status, detail)]


def test_a_log_that_is_wrong_and_a_wrong_debug_program_are_no_fault_of_the_output() -> None:
    others = Others(earlier=(OTHER,), operators={"relu": OTHER})
    assert results([bound("y", OTHER, VALUES, OTHER)], others) == [
        ("unclear", "stale: it is the value of the sample before")
    ]
    right = replace(bound("y", OTHER, VALUES, VALUES), shipped=VALUES)
    assert results([right], others) == [("unclear", "only in the debug program")]
    assert results([bound("y", OTHER, None, VALUES)]) == [("blind", None)]


def test_a_value_that_overflows_is_that_of_its_producer_and_one_whose_log_overflows_proves_nothing() -> None:
    overflow = np.array([[np.inf, 0.7, np.nan, -np.inf]], np.float32)
    assert results([bound("y", overflow, overflow, VALUES)]) == [("passed", None)]
    largest = np.array([[65504.0, 0.7, 0.4, -65504.0]], np.float32)
    assert results([bound("y", largest, overflow, VALUES)]) == [("unclear", None)]
    assert results([bound("y", overflow, largest, np.full((1, 4), 1e9, np.float32))]) == [("unclear", None)]


def test_the_worst_result_of_all_samples_counts() -> None:
    right, wrong = bound("y", VALUES, VALUES, VALUES), bound("y", OTHER, VALUES, VALUES)
    checks = [
        check
        for sample, outputs in enumerate([[right], [wrong], [right]])
        for check in check_bindings(sample, outputs, {0: NONE})
    ]
    assert [(check.sample, check.status, check.relative_error_mistaken) for check in worst_bindings(checks)] == [
        (1, "failed", None)
    ]
