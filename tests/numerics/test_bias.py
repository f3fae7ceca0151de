"""Systematic errors of a device that are small at every element, under the default tolerances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.records.vocabulary import OWN_ERROR, Verdict
from tests.numerics.judged import judged, normal, verdicts
from tests.numerics.numpy_device import fitting
from tests.numerics.numpy_graph import Program, entry, line, matmul, relu


def network(depth: int, rows: int) -> Program:
    ops = [entry(np.abs(normal(rows, 64)))]
    for number in range(depth):
        ops.append(matmul(len(ops) - 1, normal(64, 64, seed=number + 1) * np.float32(np.sqrt(1 / 32))))
        ops.append(relu(len(ops) - 1))
    return line(*ops)


def rounded_by(
    program: Program, bits: int, to_integer: Callable[[Array], Array], operators: set[int] | None = None
) -> dict[int, CapturedValue]:
    """Return the values of a device on grids of so many bits. `operators`: those that use `to_integer`; None: all."""
    reference = program.run()
    captured: dict[int, CapturedValue] = {0: CapturedValue(elements=np.asarray(reference[0]), qparams=None)}
    for index, op in list(enumerate(program.ops))[1:]:
        qparams = fitting(reference[index], bits)
        values = (captured[source].dequantized().astype(np.float32) for source in op.reads)
        steps = np.asarray(op.forward(*values), np.float64) / qparams.scale[0]
        integers = to_integer(steps) if operators is None or index in operators else np.rint(steps)
        elements = np.clip(integers + qparams.zero_point[0], 0, qparams.quant_max).astype(np.int64)
        captured[index] = CapturedValue(elements=elements, qparams=qparams)
    return captured


BITS = {"8a8w": 8, "16a8w": 16}


@pytest.mark.parametrize("scheme", BITS)
def test_a_device_that_rounds_to_the_nearest_step_has_no_error_of_its_own(scheme: str) -> None:
    program = network(20, 8)
    rows = judged(program, rounded_by(program, BITS[scheme], np.rint), scheme)
    assert not OWN_ERROR & {*verdicts(rows).values()}
    assert {row.replayed.introduced.max_steps for index, row in rows.items() if index} == {0.0}


@pytest.mark.parametrize("scheme", BITS)
def test_a_zero_point_that_is_off_by_one_is_biased_at_every_operator(scheme: str) -> None:
    program = network(20, 8)
    rows = judged(program, rounded_by(program, BITS[scheme], lambda steps: np.rint(steps) + 1), scheme)
    assert verdicts(rows) == {0: "exact"} | dict.fromkeys(range(1, 41), "biased")
    assert rows[1].cause == "device"


@pytest.mark.parametrize(("scheme", "first"), [("8a8w", "introduced"), ("16a8w", "biased")])
def test_a_zero_point_that_is_off_by_three_is_an_own_error_of_every_operator(scheme: str, first: Verdict) -> None:
    program = network(20, 8)
    rows = judged(program, rounded_by(program, BITS[scheme], lambda steps: np.rint(steps) + 3), scheme)
    assert {*verdicts(rows).values()} - {"exact"} <= OWN_ERROR
    assert (rows[1].verdict, rows[1].cause) == (first, "device")


@pytest.mark.parametrize("scheme", BITS)
def test_one_operator_with_a_wrong_zero_point_is_biased_and_no_other(scheme: str) -> None:
    program = network(5, 8)
    captured = rounded_by(program, BITS[scheme], lambda steps: np.rint(steps) + 1, operators={5})
    assert [index for index, row in judged(program, captured, scheme).items() if row.verdict in OWN_ERROR] == [5]


@pytest.mark.parametrize("scheme", BITS)
def test_a_device_that_truncates_is_biased(scheme: str) -> None:
    # The mean error of half a step is surely beyond the limit of 0.45 steps for several thousand elements only.
    program = line(
        entry(normal(256, 64)), *(matmul(number, normal(64, 64, seed=number + 1) / 8) for number in range(5))
    )
    rows = judged(program, rounded_by(program, BITS[scheme], np.floor), scheme)
    assert verdicts(rows) == {0: "exact"} | dict.fromkeys(range(1, 6), "biased")
    assert rows[1].cause == "device"
    assert rows[1].replayed.introduced.mean_steps == pytest.approx(-0.5, abs=0.02)
    right = judged(program, rounded_by(program, BITS[scheme], np.rint), scheme)
    assert not OWN_ERROR & {*verdicts(right).values()}
