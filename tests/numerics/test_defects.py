"""Counter-examples to earlier diagnoses: each names the operator that is really wrong, under the default tolerances.

A device computes a small program in NumPy, right or damaged in one place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qnnsweep.conf.load import load
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.numerics.operators import compare_values
from qnnsweep.tasks.numerics.verdict import has_own_error, limits
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.records.vocabulary import Cause
from tests.numerics.judged import SCHEMES, floats, judged, normal, verdicts
from tests.numerics.numpy_device import Device, quantization, replay

from tests.numerics.numpy_graph import (  # isort: skip
    Op, Program, above, added, argmax, chosen, constant, entry, getitem, line, matmul, multiplied, relu, relu6, scaled,
    softmax, topk,
)  # fmt: skip

# D1: the error of an operator's own grid.


@pytest.mark.parametrize(
    ("qparams", "scheme", "cause"),
    [
        pytest.param(quantization(1 / 127, bits=8), "8a8w", "clipping", id="8 bits that end at one sigma"),
        pytest.param(quantization(120 / 127, bits=8), "8a8w", "resolution", id="8 bits, 40 times too wide"),
        pytest.param(quantization(1 / 32767), "16a8w", "clipping", id="16 bits that end at one sigma"),
    ],
)
def test_the_error_of_an_operators_own_grid_is_the_grids(qparams: Quantization, scheme: str, cause: Cause) -> None:
    program = line(entry(normal(8, 64)), scaled(0, 1.0), scaled(1, 1.0))
    wide = quantization(3.5 / 32767)
    rows = judged(program, Device({1: qparams, 2: wide}).capture(program), scheme)
    # The first operator's inputs are exact, and nothing began before it.
    assert verdicts(rows) == {0: "exact", 1: "grid", 2: "inherited"}
    assert rows[1].cause == cause
    assert rows[1].replayed.inherited.max_abs == 0


def test_a_few_clipped_elements_among_many_are_found() -> None:
    x = normal(64, 64)
    x[3, 5], x[40, 2] = 60.0, -60.0
    program = line(entry(x), scaled(0, 1.0), scaled(1, 1.0))
    device = Device({1: quantization(4.5 / 32767), 2: quantization(60 / 32767)})
    rows = judged(program, device.capture(program), "16a8w")
    assert verdicts(rows) == {0: "exact", 1: "grid", 2: "inherited"}
    assert (rows[1].cause, rows[1].replayed.grid_use and rows[1].replayed.grid_use.clipped_elements) == ("clipping", 2)


# D2: elements beside others of another size.


def attention() -> tuple[Program, Device, Array]:
    """Return scores, plus a mask of -65535, then a softmax and a product with values; and where no score is masked."""
    mask = np.zeros((64, 64), np.float32)
    mask[:, 32:] = -65535
    program = line(entry(8 * normal(64, 64)), constant(mask), added(0, 1), softmax(2), matmul(3, normal(64, 8, seed=1)))
    sums = Quantization(scale=(1.0,), zero_point=(65535 - 30,), axis=None, quant_min=0, quant_max=65535, dtype="uint16")
    shares = Quantization(scale=(1 / 65535,), zero_point=(0,), axis=None, quant_min=0, quant_max=65535, dtype="uint16")
    return program, Device({2: sums, 3: shares, 4: quantization(4 / 32767)}), mask == 0


def test_the_grid_that_has_to_hold_an_additive_mask_rounds_the_scores() -> None:
    program, device, _ = attention()
    captured = device.capture(program)
    assert (snr_db(captured[2].dequantized(), np.asarray(program.run()[2])) or 0) > 60  # the energy of the mask
    rows = judged(program, captured, "16a8w")
    assert verdicts(rows) == {0: "exact", 2: "grid", 3: "inherited", 4: "inherited"}
    assert rows[2].cause == "resolution"
    assert rows[2].total.snr_db == pytest.approx(29, abs=1)
    assert rows[2].replayed.used_mask is not None


@pytest.mark.parametrize("scheme", ["16a8w", "fp16"])
def test_scores_that_are_wiped_beside_an_additive_mask_are_introduced(scheme: str) -> None:
    program, device, live = attention()
    captured = device.capture(program, {2: lambda quantized: np.where(live, 65535 - 30, quantized)})
    assert (snr_db(captured[2].dequantized(), np.asarray(program.run()[2])) or 0) > 60
    rows = judged(program, floats(captured) if scheme == "fp16" else captured, scheme)
    assert verdicts(rows) == {0: "exact", 2: "introduced", 3: "inherited", 4: "inherited"}
    assert rows[2].cause == "device"


def test_wrong_scores_beside_a_mask_of_the_least_float_are_introduced() -> None:
    mask = np.array([[0, 0, 0, np.finfo(np.float32).min]], np.float32)
    program = line(entry(np.array([[1, 2, 3, 4]], np.float32)), relu(0), constant(mask), added(1, 2), softmax(3))
    captured = Device({}).capture(program, {1: lambda _: np.array([[1, 3, 2, 4]], np.float32)})
    assert verdicts(judged(program, captured, "fp16")) == {0: "exact", 1: "introduced", 3: "inherited", 4: "inherited"}


CHANNELS = np.arange(384)[None]
DAMAGED_CHANNELS: dict[str, Callable[[Array], Array]] = {
    "channel 5 dead": lambda elements: np.where(CHANNELS == 5, 0, elements),
    "channels 1 to 8 dead": lambda elements: np.where((CHANNELS > 0) & (CHANNELS < 9), 0, elements),
    "the sign of channel 5 changed": lambda elements: np.where(CHANNELS == 5, -elements, elements),
}


@pytest.mark.parametrize("scheme", ["16a8w", "fp16"])
@pytest.mark.parametrize("damage", DAMAGED_CHANNELS)
@pytest.mark.parametrize("outlier_weight", [0.0, 1e-3])
def test_a_wrong_channel_beside_an_outlier_channel_is_introduced(
    damage: str, scheme: str, outlier_weight: float
) -> None:
    x = normal(32, 384)
    x[:, 0] = 300 * np.sign(x[:, 0])
    weight = normal(384, 10, seed=1)
    weight[0], weight[5] = outlier_weight, 30 * weight[5]
    program = line(entry(x), scaled(0, 1.0), matmul(1, weight))
    device = Device({1: quantization(320 / 32767)})
    captured = device.capture(program, {1: DAMAGED_CHANNELS[damage]})
    rows = judged(program, floats(captured) if scheme == "fp16" else captured, scheme)
    assert verdicts(rows) == {0: "exact", 1: "introduced", 2: "inherited"}
    assert rows[1].cause == "device"
    undamaged = device.capture(program)
    undamaged = floats(undamaged) if scheme == "fp16" else undamaged
    assert verdicts(judged(program, undamaged, scheme)) == {0: "exact", 1: "within_grid", 2: "within_grid"}


@pytest.mark.parametrize("scheme", ["16a8w", "fp16"])
def test_a_signal_replaced_by_its_mean_is_biased_although_its_ratio_is_high(scheme: str) -> None:
    program = line(entry(100 + normal(32, 64) / 10), scaled(0, 1.0), scaled(1, 1.0))
    qparams = quantization(110 / 32767)
    captured = Device({1: qparams}).capture(program, {1: lambda x: np.full_like(x, round(100 / qparams.scale[0]))})
    rows = judged(program, floats(captured) if scheme == "fp16" else captured, scheme)
    assert (rows[1].verdict, rows[1].cause) == ("biased", "device")
    assert rows[1].total.snr_db == pytest.approx(60, abs=0.1)
    assert rows[1].replayed.introduced.gain == pytest.approx(0, abs=1e-6)


# D3: booleans and indices.


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_inverted_comparison_is_introduced(scheme: str) -> None:
    program = line(entry(normal(4, 64)), above(0, 0.0), scaled(0, 2.0), chosen(1, 0, 2))
    rows = judged(program, Device({}).capture(program, {1: lambda booleans: ~booleans}), scheme)
    assert verdicts(rows) == {0: "exact", 1: "introduced", 2: "exact", 3: "inherited"}
    assert rows[1].replayed.introduced.differing == 256


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_single_wrong_boolean_is_introduced(scheme: str) -> None:
    program = line(entry(normal(4, 64)), above(0, 0.0), scaled(0, 2.0), chosen(1, 0, 2))

    def one_inverted(booleans: Array) -> Array:
        return booleans ^ (np.arange(256).reshape(4, 64) == 7)

    rows = judged(program, Device({}).capture(program, {1: one_inverted}), scheme)
    assert rows[1].verdict == "introduced"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_index_that_is_off_by_three_is_introduced(scheme: str) -> None:
    program = line(entry(normal(1, 1000)), scaled(0, 1.0), argmax(1))
    rows = judged(program, Device({}).capture(program, {2: lambda index: index + 3}), scheme)
    assert verdicts(rows) == {0: "exact", 1: "exact", 2: "introduced"}


TOPK = [topk(0, 3), getitem(1, 0), getitem(1, 1)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_indices_in_reverse_order_are_introduced(scheme: str) -> None:
    classes = np.array([[0.1, 5, 4, 3, 0, 0, 0, 0, 0, 0]], np.float32)
    program = Program([entry(classes), *TOPK], [2, 3])
    captured = Device({}).capture(program, {3: lambda indices: indices[:, ::-1].copy()})
    assert verdicts(judged(program, captured, scheme)) == {0: "exact", 2: "exact", 3: "introduced"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_index_of_another_of_equal_elements_is_right(scheme: str) -> None:
    tied = np.zeros((1, 1000), np.float32)
    tied[0, [10, 500, 700, 900]] = 1.0
    program = Program([entry(tied), *TOPK], [2, 3])
    captured = Device({}).capture(program, {3: lambda _: np.array([[900, 10, 700]])})
    # Its inputs are exact: the error did not begin before it.
    assert verdicts(judged(program, captured, scheme)) == {0: "exact", 2: "exact", 3: "within_grid"}


# D10: elements that are read, beside one whose derivative is far larger.


def reciprocal(source: int) -> Op:
    return Op(reads=(source,), forward=lambda x: 1 / x, pullback=lambda w, x: [-w[0] / x**2])


def rsqrt(source: int) -> Op:
    return Op(reads=(source,), forward=lambda x: 1 / np.sqrt(x), pullback=lambda w, x: [-0.5 * w[0] * x**-1.5])


def divided(a: int, b: int) -> Op:
    return Op(
        reads=(a, b), forward=lambda x, y: x / y, pullback=lambda w, x, y: [w[0] / y, -w[0] * x / y**2]
    )  # fmt: skip


@pytest.mark.parametrize("reader", [reciprocal, rsqrt])
def test_an_element_beside_one_with_a_huge_derivative_is_read(reader: Callable[[int], Op]) -> None:
    live = constant(np.array([[0, 1, 1, 1]], np.float32))
    program = line(entry(np.array([[1e-12, 1, 2, 3]], np.float32)), relu(0), reader(1), live, multiplied(2, 3))
    captured = Device({}).capture(program, {1: lambda _: np.array([[1e-12, 2, 0.5, 6]], np.float32)})
    rows = judged(program, captured, "fp16")
    assert verdicts(rows) == {0: "exact", 1: "introduced", 2: "inherited", 4: "inherited"}
    assert rows[1].replayed.masked == 0


def test_an_element_beside_one_that_is_multiplied_by_ten_million_is_read() -> None:
    weight = constant(np.array([[1e7, 1, 1, 1]], np.float32))
    program = line(entry(np.ones((1, 4), np.float32)), relu(0), weight, multiplied(1, 2), divided(3, 2))
    captured = Device({}).capture(program, {1: lambda _: np.array([[1, 3, -2, 0]], np.float32)})
    rows = judged(program, captured, "fp16")
    assert (rows[1].verdict, rows[1].replayed.masked, rows[4].verdict) == ("introduced", 0, "inherited")


# D11: smaller ones.


def test_an_element_that_the_reference_reads_counts_in_the_total_error_although_the_device_drops_it() -> None:
    program = line(entry(np.array([3, 1, 2, 0.5], np.float32)), scaled(0, 1.0), scaled(1, 1.0), relu6(2))
    turned = Device({}).capture(program, {1: lambda x: x * np.array([-1, 1, 1, 1], np.float32)})
    dropped = CapturedValue(elements=np.array([-61, 1, 2, 0.5], np.float32), qparams=None)
    rows = judged(program, turned | {2: dropped}, "fp16")
    assert verdicts(rows) == {0: "exact", 1: "introduced", 2: "inherited", 3: "inherited"}
    assert (rows[2].total.max_abs, rows[2].replayed.masked) == (64, 1)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("actual", "reference"),
    [
        pytest.param(np.array([2**53 + 1]), np.array([2**53]), id="integers that float64 rounds to the same number"),
        pytest.param(np.array([1.7e308]), np.array([-1.7e308]), id="an error that float64 cannot hold"),
    ],
)
def test_values_that_metrics_cannot_distinguish_are_not_exact(actual: Array, reference: Array, scheme: str) -> None:
    program = line(entry(reference), Op(reads=(0,), forward=lambda x: x))
    captured = Device({}).capture(program, {1: lambda _: actual})
    assert compare_values(actual, reference).status == "compared"
    assert verdicts(judged(program, captured, scheme)) == {0: "exact", 1: "introduced"}


@pytest.mark.parametrize("target", ["slice_copy.Tensor", "transpose_copy.int", "cat.default", "view_copy.default"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_operator_that_only_moves_elements_may_be_one_step_off_and_not_two(scheme: str, target: str) -> None:
    tolerance = limits(load([f"scheme={scheme}"]).cells[0].request.tolerance.operators, scheme, f"aten.{target}")
    program = line(entry(normal(4, 64)), Op(reads=(0,), forward=lambda x: x))
    device = Device({1: quantization(4 / 127, bits=8)})
    alternating = np.where(np.arange(256).reshape(4, 64) % 2, 1, -1)
    for steps, expected in ((1, False), (2, True)):
        captured = device.capture(program, {1: lambda elements, steps=steps: elements + steps * alternating})
        introduced = replay(program, captured, lambda *_: False)[1].introduced
        assert has_own_error(introduced, tolerance) is expected
