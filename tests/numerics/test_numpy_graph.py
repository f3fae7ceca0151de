"""The derivatives of the tests' own programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.numerics.judged import normal
from tests.numerics.numpy_between import RunBetween

from tests.numerics.numpy_graph import (  # isort: skip
    Op, above, added, chosen, entry, gathered, getitem, line, matmul, max_pool, mean, multiplied, relu,
    relu6, scaled, sliced, softmax, split, topk, transposed, viewed,
)  # fmt: skip

OPS: dict[str, Callable[[], list[Op]]] = {
    "scaled": lambda: [scaled(0, 2.0)],
    "matmul": lambda: [matmul(0, normal(4, 3))],
    "added": lambda: [added(0, 0)],
    "multiplied": lambda: [multiplied(0, 0)],
    "relu": lambda: [relu(0)],
    "relu6": lambda: [scaled(0, 5.0), relu6(1)],
    "softmax": lambda: [softmax(0)],
    "mean": lambda: [mean(0)],
    "max_pool": lambda: [max_pool(0), getitem(1, 0)],
    "topk": lambda: [topk(0, 2), getitem(1, 0)],
    "split": lambda: [split(0), getitem(1, 0), getitem(1, 1), multiplied(2, 3)],
    "half of a split": lambda: [split(0), getitem(1, 1)],
    "sliced": lambda: [sliced(0, 1, 3)],
    "transposed": lambda: [transposed(0)],
    "viewed": lambda: [viewed(0)],
    "chosen": lambda: [above(0, 0.0), scaled(0, 3.0), chosen(1, 0, 2)],
    "gathered": lambda: [topk(0, 2), getitem(1, 1), gathered(0, 2)],
    "in sequence": lambda: [relu(0), matmul(1, normal(4, 4)), multiplied(2, 0), softmax(3), mean(4)],
}


@pytest.mark.parametrize("ops", OPS)
def test_the_derivatives_of_a_run_are_those_of_differences(ops: str) -> None:
    x = normal(2, 4, seed=3).astype(float)
    program = line(entry(x), *OPS[ops]())
    run = program.between([x], {}, {0: 0 * x}, 0.5)
    assert isinstance(run, RunBetween)
    direction = np.random.default_rng(1).standard_normal(program.answer(program.run())[0].shape)
    slope = run.gradients(0, direction)[0]
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        sums: list[float] = []
        for moved in (x + step, x - step):
            program.ops[0] = entry(moved)
            sums.append(float((direction * program.answer(program.run())[0]).sum()))
        assert slope[place] == pytest.approx((sums[0] - sums[1]) / 2e-6, abs=1e-5)
