"""The default tolerances on random networks: a right device is never blamed, and a wrong operator is the only one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.introduced import Difference, introduced_error
from qnnsweep.tasks.numerics.verdict import has_own_error
from qnnsweep.tasks.records.vocabulary import OWN_ERROR
from tests.numerics.judged import allowed, judged, normal, verdicts
from tests.numerics.numpy_device import Device, fitting

from tests.numerics.numpy_graph import (  # isort: skip
    Program, added, entry, matmul, mean, relu, relu6, scaled, sliced, softmax, transposed,
)  # fmt: skip

BITS = {"8a8w": 8, "16a8w": 16}
BLAMED = OWN_ERROR | {"contradicted"}
WEIGHT = normal(32, 32) / 6
STEPS = [
    relu, relu6, softmax, mean, transposed, lambda x: scaled(x, -1.5), lambda x: sliced(x, 0, 16),
    lambda x: added(x, x), lambda x: added(x, 1), lambda x: matmul(x, WEIGHT),
]  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> Program:
    """Draw a program of operators in sequence or in parallel. Operators that nothing reads are final outputs."""
    program = Program([entry(normal(32, 32, seed=draw(st.integers(1, 999)))), matmul(0, WEIGHT * 1.5)])
    for _ in range(draw(st.integers(1, 7))):
        program.add(draw(st.sampled_from(STEPS))(draw(st.integers(1, len(program.ops) - 1))))
    used = {source for op in program.ops for source in op.reads}
    program.output_ops = [index for index in range(len(program.ops)) if index not in used]
    return program


def fitted(program: Program, scheme: str) -> Device:
    """Return a device whose grids are calibrated on the program's own run."""
    values = {index: np.asarray(value) for index, value in program.run().items() if index}
    return Device({index: fitting(value, BITS[scheme]) for index, value in values.items() if np.ptp(value) > 0})


@given(networks().filter(Program.fits), st.sampled_from([*BITS]))
def test_a_right_device_is_not_blamed(program: Program, scheme: str) -> None:
    rows = judged(program, fitted(program, scheme).capture(program), scheme)
    assert not BLAMED & {*verdicts(rows).values()}


def noise(elements: Array, bits: int) -> Array:
    most = 2 ** (bits - 2)
    return elements + np.random.default_rng(0).integers(-most, most + 1, elements.shape)


DAMAGES: dict[str, Callable[[Array, int], Array]] = {
    "elements exchanged": lambda elements, bits: np.roll(elements, 1, -1) if elements.ndim else elements + 50,
    "zero point off by two": lambda elements, bits: elements + 2,
    "noise": noise,
    "constant": lambda elements, bits: np.zeros_like(elements),
}


@pytest.mark.parametrize("damage", DAMAGES)
@given(networks().filter(Program.fits), st.sampled_from([*BITS]), st.data())
def test_no_operator_but_the_wrong_one_is_blamed(
    damage: str, program: Program, scheme: str, data: st.DataObject
) -> None:
    device = fitted(program, scheme)
    index = data.draw(st.sampled_from(sorted(device.qparams)))
    captured = device.capture(program, {index: lambda elements: DAMAGES[damage](elements, BITS[scheme])})
    rows = judged(program, captured, scheme)
    assert {other for other, row in rows.items() if row.verdict in BLAMED} <= {index}
    # The last axis of a softmax or a mean may hold one element, and a clamp may leave too few elements to be sure.
    introduced = rows[index].replayed.introduced
    if damage != "elements exchanged" and introduced.elements >= 256:
        assert rows[index].verdict in OWN_ERROR


def test_a_permutation_on_the_cpu_is_not_blamed_for_the_rounding_of_a_float32_value() -> None:
    # What MobileViTv2's delegates return differs from (q - zero point) * scale by up to two float32 roundings.
    right = normal(8, 64).astype(np.float32)
    logged = (right * (1 + 1.5e-7 * normal(8, 64, seed=1))).astype(np.float32)
    tolerance = allowed("16a8w", "aten.permute_copy.default")
    rounded, exchanged = (
        introduced_error(Difference.between(CapturedValue(elements=elements, qparams=None), right))
        for elements in (logged, np.concatenate([logged[:, :1], logged[:, :0:-1]], 1))
    )
    assert 130 < (rounded.gap.snr_db or 0) < 140
    assert (has_own_error(rounded, tolerance), has_own_error(exchanged, tolerance)) == (False, True)
