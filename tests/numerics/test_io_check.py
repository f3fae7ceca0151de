"""The check of inputs and outputs: every mistake fails, and a right program fails no check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.io_check import check_io, check_mistake, relative_error
from qnnsweep.tasks.numerics.io_mistakes import layouts, orders
from qnnsweep.tasks.records import Blob, ExportedMethod, InputMistake, IoCheck, TensorSpec
from qnnsweep.tasks.records.vocabulary import PROBE_STATUSES

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=5).map(tuple)
QUIET = settings(deadline=None)
BLOB = Blob(sha256="0" * 64, size=1)


def spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype)


def model(*outputs: TensorSpec, mistakes: tuple[InputMistake, ...] = (), samples: int = 1) -> ExportedMethod:
    return ExportedMethod(
        program=BLOB, inputs=(), outputs=outputs, calibration=None, calibration_samples=0, evaluation=BLOB,
        sample_names=("s",) * samples, labels=(None,) * samples, outputs_eager=BLOB, outputs_exported=BLOB,
        input_mistakes=mistakes, mistaken_outputs=BLOB,
    )  # fmt: skip


def noise(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def failed(checks: tuple[IoCheck, ...]) -> list[tuple[str, str | None]]:
    return [(row.mistake, row.detail) for row in checks if row.status == "failed"]


@QUIET
@given(shapes=st.lists(st.sampled_from([(1, 2), (2, 1)]), max_size=7))
def test_an_order_exchanges_tensors_of_equal_shape_and_no_others(shapes: list[tuple[int, ...]]) -> None:
    specs = [spec(str(index), *shape) for index, shape in enumerate(shapes)]
    possible = orders(specs)
    assert len(set(possible)) == len(possible)
    for order in possible:
        assert sorted(order) == list(range(len(specs)))
        assert order != tuple(range(len(specs)))
        assert [specs[index].shape for index in order] == shapes
    # Every tensor that has an equal one changes its position in some order.
    for index in range(len(specs)):
        alike = shapes.count(shapes[index]) > 1
        assert alike == any(order[index] != index for order in possible)


def test_an_order_does_not_exchange_tensors_of_different_types() -> None:
    assert orders([spec("a", 2), spec("b", 2, dtype="int64"), spec("c", 3)]) == []
    assert orders([spec("a", 2), spec("b", 3), spec("c", 2)]) == [(2, 1, 0)]


@QUIET
@given(shape=SHAPES)
def test_every_axis_order_moves_elements(shape: tuple[int, ...]) -> None:
    tensor = np.arange(math.prod(shape)).reshape(shape)
    for axes in layouts(shape):
        assert sorted(axes) == list(range(len(shape)))
        assert not np.array_equal(np.transpose(tensor, axes).ravel(), tensor.ravel())


def test_the_axis_orders_of_an_image_a_matrix_and_a_vector() -> None:
    assert layouts((1, 3, 8, 8)) == [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)]
    assert layouts((1, 1, 8, 8)) == [(0, 3, 1, 2)]
    assert layouts((4, 5)) == [(1, 0)]
    assert layouts((1, 5)) == layouts((5,)) == layouts(()) == []


@QUIET
@given(seed=SEEDS, size=st.integers(2, 40), loudness=st.floats(0, 0.1))
def test_a_mistake_is_found_and_a_right_program_passes(seed: int, size: int, loudness: float) -> None:
    right, mistaken, error = noise(seed, 3, size).astype(np.float64)
    error *= loudness * min(np.linalg.norm(right), np.linalg.norm(mistaken)) / np.linalg.norm(error)
    if relative_error([mistaken], [right]) < 0.25 or relative_error([right], [mistaken]) < 0.25:
        return
    check_of_right = check_mistake("input", "x", 0, [right + error], [[right]], [[mistaken]])
    check_of_wrong = check_mistake("input", "x", 0, [mistaken + error], [[right]], [[mistaken]])
    assert check_of_right.status == "passed"
    assert check_of_wrong.status == "failed"
    assert (check_of_wrong.relative_error or 0) > (check_of_wrong.relative_error_mistaken or 0)


@QUIET
@given(seed=SEEDS)
def test_equal_explanations_are_blind_and_two_wrong_ones_are_unclear(seed: int) -> None:
    right, other, device = noise(seed, 3, 500)
    assert check_mistake("input", "x", 0, [device], [[right]], [[right * (1 + 1e-4)]]).status == "blind"
    assert check_mistake("input", "x", 0, [device], [[right]], [[other]]).status == "unclear"
    # A mistake that changes little is near the device's outputs, but the model is nearer.
    assert check_mistake("input", "x", 0, [right], [[right]], [[right * 1.05]]).status == "passed"


def test_outputs_of_zeros_that_the_scheme_leaves_have_no_wrong_axis_order() -> None:
    exported, eager = model(spec("y", 1, 3, 4)), {"0/0": noise(0, 1, 3, 4) * 1e-14}
    zeros = {"0/0": np.zeros((1, 3, 4), np.float32)}
    checks = check_io(exported, eager, {}, zeros, zeros, eager)
    assert [(row.mistake, row.status) for row in checks if "axis order" in row.mistake] == [
        ("output y is laid out in the axis order [0, 2, 1]", "blind")
    ]


def pooled(mistakes: int = 2) -> tuple[ExportedMethod, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """A network whose outputs hardly depend on the order of the axes: its outputs, and those after each mistake."""
    axes = [InputMistake(name=f"axes {number}", sample=0, refused=None) for number in range(mistakes)]
    eager = noise(0, 1, 5) + 3
    mistaken = {f"{number}/0": eager + 0.6 + 0.1 * noise(number + 1, 1, 5) for number in range(mistakes)}
    return model(spec("y", 1, 5), mistakes=tuple(axes)), {"0/0": eager}, mistaken


def statuses(checks: tuple[IoCheck, ...]) -> list[str]:
    return [row.status for row in checks if row.side == "input"]


def test_rounding_that_looks_like_a_mistake_is_none_if_the_design_rounds_so_too() -> None:
    exported, eager, mistaken = pooled(mistakes=1)
    device = {"0/0": mistaken["0/0"] + 0.02 * noise(9, 1, 5)}
    design = {"0/0": device["0/0"] + 0.01 * noise(10, 1, 5)}
    assert statuses(check_io(exported, eager, mistaken, device)) == ["failed"]
    (row,) = [row for row in check_io(exported, eager, mistaken, device, design, eager) if row.side == "input"]
    assert (row.status, row.relative_error) == ("passed", relative_error([device["0/0"]], [design["0/0"]]))


def test_a_mistake_of_the_lowering_is_in_its_design_too_and_fails() -> None:
    exported, eager, mistaken = pooled(mistakes=1)
    edge = {"0/0": mistaken["0/0"] * 1.001}
    device = {"0/0": edge["0/0"] + 0.001 * noise(9, 1, 5)}
    assert statuses(check_io(exported, eager, mistaken, device, device, edge)) == ["failed"]
    assert statuses(check_io(exported, eager, mistaken, device, device, None)) == ["passed"]


def test_of_mistakes_that_exclude_each_other_at_most_one_fails() -> None:
    exported, eager, mistaken = pooled()
    first, second = mistaken["0/0"], mistaken["1/0"]
    assert statuses(check_io(exported, eager, mistaken, {"0/0": (first + second) / 2})) == ["unclear", "unclear"]
    assert statuses(check_io(exported, eager, mistaken, {"0/0": second})) == ["unclear", "failed"]
    same = {"0/0": first, "1/0": first * (1 + 1e-6)}
    one, other, *_ = check_io(exported, eager, same, {"0/0": first})
    assert (one.status, one.detail, other.status, other.detail) == ("failed", "or axes 1", "unclear", None)


def test_an_output_that_is_not_finite_is_never_explained() -> None:
    right, bad = np.ones(4), np.array([1.0, np.nan, 1.0, np.inf])
    check = check_mistake("input", "x", 3, [bad], [[right]], [[2 * right]])
    assert (check.status, check.sample, check.relative_error, check.relative_error_mistaken) == (
        *("unclear", 3),
        *(None, None),
    )
    assert check_mistake("input", "x", 0, [right], [[right]], [[bad]]).status == "passed"


def test_the_relative_error_is_the_mean_over_the_outputs() -> None:
    assert relative_error([np.array([3.0, 4.0])], [np.array([3.0, 5.0])]) == 1 / 34
    large, small = np.array([1e6, 0.0]), np.array([1.0, 1.0])
    assert relative_error([large, 0 * small], [large, small]) == 0.5
    assert relative_error([np.zeros(2)], [np.zeros(2)]) == 0.0
    assert relative_error([np.ones(2)], [np.zeros(2)]) == np.inf
    assert relative_error([np.ones(3)], [np.ones(2)]) == np.inf


def test_an_input_mistake_is_checked_on_its_own_sample_and_a_refused_one_has_the_reason() -> None:
    order = InputMistake(name="the program takes its inputs in the order ['b', 'a']", sample=1, refused=None)
    index = InputMistake(name="x", sample=0, refused="IndexError: 9")
    exported = model(spec("y", 1, 30), mistakes=(index, order), samples=2)
    eager = {"0/0": noise(0, 1, 30), "1/0": noise(1, 1, 30)}
    mistaken = {"1/0": noise(2, 1, 30)}
    device = {"0/0": eager["0/0"], "1/0": mistaken["1/0"]}
    refused, swapped, *_ = check_io(exported, eager, mistaken, device)
    assert refused == IoCheck(
        side="input", mistake="x", sample=0, status="refused", relative_error=None, relative_error_mistaken=None,
        detail="IndexError: 9",
    )  # fmt: skip
    assert (swapped.mistake, swapped.sample, swapped.status) == (order.name, 1, "failed")
    assert set(PROBE_STATUSES) >= {refused.status, swapped.status}


@QUIET
@given(seed=SEEDS)
def test_right_outputs_fail_no_check_and_wrong_outputs_exactly_one(seed: int) -> None:
    exported = model(spec("p", 1, 3, 4, 5), spec("q", 1, 3, 4, 5))
    p, q = noise(seed, 2, 1, 3, 4, 5)
    eager = {"0/0": p, "0/1": q}

    def failures(first: NDArray[Any], second: NDArray[Any]) -> list[tuple[str, str | None]]:
        return failed(check_io(exported, eager, {}, {"0/0": first, "0/1": second}))

    assert failures(p, q) == []
    assert failures(p + 0.05 * noise(seed + 1, 1, 3, 4, 5), q) == []
    assert failures(1.3 * p, q) == []  # a wrong gain is an error to measure, not a mistake of the interface
    assert failures(q, p) == [("the outputs come in the order ['q', 'p']", None)]
    last, other_last = (np.transpose(output, (0, 2, 3, 1)).reshape(output.shape) for output in (q, p))
    assert failures(other_last, last) == [
        (f"output {name} is laid out in the axis order [0, 2, 3, 1]", None) for name in "pq"
    ]
    assert failures(p, last) == [("output q is laid out in the axis order [0, 2, 3, 1]", None)]
    units = "output p is of another type or in other units"
    assert failures(np.rint(p / 0.01) + 128, q) == [(units, "it is in other units")]
    assert failures(np.rint(p * 100).astype(np.int32).view(np.float32), q) == [
        (units, "its bytes are int32, in other units")
    ]


def test_bytes_of_another_type_are_distinguished_from_other_units() -> None:
    counts = np.arange(-6, 6, dtype=np.float32).reshape(1, 12)
    (row,) = check_io(model(spec("n", 1, 12)), {"0/0": counts}, {}, {"0/0": counts.astype(np.int32).view(np.float32)})
    assert (row.side, row.status, row.detail) == ("output", "failed", "its bytes are int32")


@QUIET
@given(
    data=st.binary(min_size=64, max_size=64),
    right=st.binary(min_size=64, max_size=64),
    dtype=st.sampled_from(["float16", "float32", "float64", "int8", "int32", "int64", "uint16"]),
    samples=st.integers(1, 2),
)
def test_no_bytes_of_a_device_or_of_a_model_end_the_check(data: bytes, right: bytes, dtype: str, samples: int) -> None:
    shape = (2, 32 // np.dtype(dtype).itemsize)
    actual, eager = (np.frombuffer(content, dtype).reshape(shape) for content in (data, right))
    keys = [f"{sample}/0" for sample in range(samples)]
    rows = check_io(
        model(spec("y", *shape, dtype=dtype), samples=samples),
        dict.fromkeys(keys, eager),
        {},
        dict.fromkeys(keys, actual),
    )
    assert [row.mistake for row in rows] == [
        "output y is laid out in the axis order [1, 0]",
        "output y is of another type or in other units",
    ]


@pytest.mark.parametrize("offset", [0.0, 1e6, -3e7])
def test_values_in_other_units_are_explained_if_they_differ_little_from_each_other(offset: float) -> None:
    right = noise(4, 3, 5)
    rows = check_io(
        model(spec("y", 3, 5, dtype="float64")),
        {"0/0": right.astype(np.float64)},
        {},
        {"0/0": right.astype(np.float64) * 1e-6 + offset},
    )
    assert failed(rows) == [("output y is of another type or in other units", "it is in other units")]
