"""Logged values that are not those that the device computed with: wrong logs, and fused operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue, Value
from qnnsweep.tasks.numerics.verdict import has_own_error
from qnnsweep.tasks.records.vocabulary import OWN_ERROR
from tests.numerics.judged import allowed, judged, normal, verdicts
from tests.numerics.numpy_device import Device, fitting, logged, quantization, replay
from tests.numerics.numpy_graph import Op, Program, entry, line, matmul, relu6, scaled


def gelu(source: int) -> Op:
    def forward(x: Array) -> Array:
        return (0.5 * x * (1 + np.tanh(0.79788456 * (x + 0.044715 * x**3)))).astype(np.float32)

    def pullback(w: Any, x: Array) -> list[Array | None]:
        return [w[0] * (forward(x + 1e-3) - forward(x - 1e-3)) / 2e-3]

    return Op(reads=(source,), forward=forward, pullback=pullback)


WEIGHT = normal(64, 64, seed=9) / 8


def test_a_log_that_its_readers_contradict_is_distinguished_from_a_wrong_operator() -> None:
    program = line(entry(normal(16, 64)), matmul(0, WEIGHT), gelu(1), matmul(2, WEIGHT))
    device = Device({index: fitting(program.run()[index], 8) for index in (1, 2, 3)})
    right = device.capture(program)
    rolled = CapturedValue(elements=np.roll(right[1].elements, 1, -1), qparams=right[1].qparams)
    rows = judged(program, right | {1: rolled}, "8a8w")
    assert verdicts(rows) == {0: "exact", 1: "contradicted", 2: "within_grid", 3: "within_grid"}
    assert rows[1].cause == "resolution"
    wrong = device.capture(program, {1: lambda elements: np.roll(elements, 1, -1)})
    assert verdicts(judged(program, wrong, "8a8w")) == {0: "exact", 1: "introduced", 2: "inherited", 3: "inherited"}


@pytest.mark.parametrize(("logged_right", "again"), [(False, 0), (True, 2)], ids=["wrong operator", "wrong log"])
def test_readers_are_computed_again_only_if_all_of_them_have_an_error(
    logged_right: bool, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    call = DeviceRun.call

    def counted(run: DeviceRun, index: int, instead: Mapping[int, Value] | None = None) -> Value | None:
        calls.extend([index] if instead else [])
        return call(run, index, instead)

    monkeypatch.setattr(DeviceRun, "call", counted)
    program = line(entry(normal(16, 64)), matmul(0, WEIGHT), gelu(1), matmul(2, WEIGHT))
    captured = Device({}).capture(program, {1: lambda elements: np.roll(elements, 1, -1)})
    captured |= {index: Device({}).capture(program)[index] for index in ((2, 3) if logged_right else ())}
    replay(program, captured, lambda _, error: has_own_error(error, allowed("fp16")))
    assert calls == [2] * again  # once to see whether the reader contradicts the log, once for its own error


def test_a_log_is_contradicted_only_if_all_its_readers_contradict_it() -> None:
    program = Program([entry(normal(16, 64)), scaled(0, 1.0), gelu(1), matmul(1, WEIGHT)], [2, 3])
    captured = Device({}).capture(program, {1: lambda x: np.roll(x, 1, -1)})
    assert verdicts(judged(program, captured, "fp16")) == {0: "exact", 1: "introduced", 2: "inherited", 3: "inherited"}
    right = Device({}).capture(program)
    assert verdicts(judged(program, captured | {2: right[2]}, "fp16"))[1] == "introduced"
    assert verdicts(judged(program, right | {1: captured[1]}, "fp16")) == {
        0: "exact",
        1: "contradicted",
        2: "exact",
        3: "exact",
    }


@pytest.mark.parametrize("coarse", [1.0, 0.5, 0.25])
def test_a_chain_of_three_fused_operators_has_no_error_of_its_own(coarse: float) -> None:
    program = line(entry(normal(16, 64)), matmul(0, WEIGHT), scaled(1, 1.3), relu6(2))
    reference = program.run()
    # The debug program rounds the values between the three, the device does not.
    steps = {1: quantization(coarse, bits=8), 2: quantization(coarse, bits=8), 3: quantization(6 / 255, -128, bits=8)}
    captured = {index: logged(np.asarray(reference[index]), qparams) for index, qparams in steps.items()}
    rows = judged(program, captured | {0: CapturedValue(elements=program.run()[0], qparams=None)}, "8a8w")
    assert not OWN_ERROR & {*verdicts(rows).values()}
    assert (rows[3].verdict, rows[3].replayed.spans, rows[3].cause) == ("within_grid", (1, 2), "resolution")


def test_an_error_that_is_not_in_the_total_error_is_not_felt() -> None:
    # Four operators in a row are fused: more than a chain is searched for.
    program = line(entry(normal(16, 64)), *(matmul(index, WEIGHT) for index in range(4)), gelu(4))
    reference = program.run()
    steps = {index: quantization(1.0, bits=8) for index in (1, 2, 3, 4)} | {5: quantization(4 / 127, bits=8)}
    captured = {index: logged(np.asarray(reference[index]), qparams) for index, qparams in steps.items()}
    rows = judged(program, captured | {0: CapturedValue(elements=program.run()[0], qparams=None)}, "8a8w")
    assert has_own_error(rows[5].replayed.introduced, allowed("8a8w"))
    assert (rows[5].replayed.felt, rows[5].verdict) == (False, "within_grid")


def test_a_nan_is_introduced_although_the_finite_elements_are_those_of_the_reference() -> None:
    program = line(entry(np.array([1.0, 2.0], np.float32)), scaled(0, 2.0), scaled(1, 1.0))
    nan = np.array([2.0, np.nan], np.float32)
    captured = {0: np.array([1.1, 2.0], np.float32), 1: nan, 2: nan}
    rows = judged(program, {i: CapturedValue(elements=value, qparams=None) for i, value in captured.items()}, "fp16")
    assert (rows[1].verdict, rows[2].verdict) == ("introduced", "inherited")
