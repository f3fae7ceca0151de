"""The search for dead parts of outputs: each dead part fails, and no healthy output does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.dead_parts import Assembly, Part, check_dead_parts

Array = NDArray[Any]
SEEDS = st.integers(0, 2**32 - 1)
GRID = 600 / 255
"""The step of an 8-bit grid of boxes in pixels."""

DEAD_SCORES = (
    "the 400 elements from scores (4 to 11 of axis 1): always 0 on the device, 9.604e-05 to 0.9998 in eager PyTorch; "
    "the same program on the host loses it, too"
)


def rounded(values: Array, step: float) -> Array:
    return (np.rint(values / step) * step).astype(np.float32)


def smooth(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def found(
    eager: Array, device: Array, assembly: Assembly | None = None, design: Array | None = None
) -> dict[str, tuple[str, str | None]]:
    checks = check_dead_parts("y", eager, device, design, lambda: assembly or Assembly())
    return {check.mistake.replace("output y ", ""): (check.status, check.detail) for check in checks}


def statuses(*arguments: Any) -> list[str]:
    return [status for status, _ in found(*arguments).values()]


def detector(scores: Array | None = None) -> tuple[Array, Assembly]:
    """Four rows of boxes and eight of scores in one output, by two operators."""
    boxes = np.abs(smooth(0, 4, 1, 4, 50)) * 150
    scores = np.random.default_rng(1).uniform(0, 1, (4, 1, 8, 50)) if scores is None else scores
    masks = [np.zeros((1, 12, 50), bool) for _ in range(2)]
    masks[0][:, :4], masks[1][:, 4:] = True, True
    parts = [Part(operator=name, mask=mask) for name, mask in zip(("boxes", "scores"), masks, strict=True)]
    return np.concatenate([boxes, scores], 2).astype(np.float32), Assembly(step=GRID, parts=parts)


def test_scores_that_share_a_grid_with_boxes_are_dead_below_the_step_of_that_grid() -> None:
    eager, assembly = detector()
    device = rounded(eager, GRID)
    assert 20 * np.log10(np.linalg.norm(eager) / np.linalg.norm(device - eager)) > 40
    assert found(eager, device, assembly, device) == {
        "does not depend on the input": ("passed", None),
        "a part of is constant": ("failed", DEAD_SCORES),
    }
    assert statuses(eager, rounded(eager, 0.01), assembly) == ["passed", "passed"]


@pytest.mark.parametrize("step_of_design", [GRID, 0.01, None])
def test_another_scheme_can_cure_a_part_only_if_its_design_is_constant_too(step_of_design: float | None) -> None:
    eager, assembly = detector()
    design = None if step_of_design is None else rounded(eager, step_of_design)
    checks = check_dead_parts("y", eager, rounded(eager, GRID), design, lambda: assembly)
    assert [(check.status, check.of_the_scheme) for check in checks] == [
        ("passed", False),
        ("failed", step_of_design == GRID),
    ]


def test_a_dead_channel_of_scores_is_found_and_one_that_hardly_varies_is_coarse() -> None:
    scores = np.random.default_rng(1).uniform(0, 5, (4, 1, 8, 50))
    scores[:, :, 2] *= 0.2
    eager, assembly = detector(scores)
    status, detail = found(eager, rounded(eager, GRID), assembly)["a part of is constant"]
    assert (status, (detail or "")[:26]) == ("failed", "slice 6 of axis 1 of score")
    scores[:, :, 2] *= 0.01
    eager, assembly = detector(scores)
    assert statuses(eager, rounded(eager, GRID), assembly) == ["passed", "coarse"]


def test_a_channel_that_the_device_loses_is_dead_without_any_joining() -> None:
    eager = smooth(2, 4, 1, 6, 8, 8)
    device = eager + 0.05 * smooth(3, *eager.shape)
    device[:, :, 4] = 0.25
    status, detail = found(eager, device, None, eager)["a part of is constant"]
    assert status == "failed"
    assert detail is not None
    assert detail.startswith("slice 4 of axis 1: always 0.25 on the device")
    assert detail.endswith("its design varies, so that the compiler or the device loses it")


def test_an_output_that_is_the_same_for_all_samples_is_dead_unless_its_grid_is_too_coarse() -> None:
    eager = smooth(4, 6, 1, 10)
    same = np.repeat(eager[:1], 6, axis=0)
    assert statuses(eager, same) == ["failed", "passed"]
    assert statuses(100 + 0.05 * eager, np.full_like(eager, 100)) == ["coarse", "passed"]
    assert statuses(100 + eager, np.full_like(eager, 100), Assembly(step=100)) == ["coarse", "passed"]
    # In its design the output varies by many steps of float16, so that no grid is an excuse.
    assert statuses(1 + 0.01 * eager, 1 + 0.01 * same, None, 1 + 0.01 * eager) == ["failed", "passed"]
    assert statuses(same, same) == ["blind", "passed"]
    assert statuses(eager[:1], np.zeros_like(eager[:1])) == ["blind", "failed"]


def test_integers_that_rarely_change_prove_nothing() -> None:
    rarely = np.array([[3]] * 11 + [[5]])
    often = np.arange(12)[:, None]
    constant = np.full((12, 1), 3)
    assert statuses(rarely, constant) == ["coarse"]
    assert statuses(often, constant) == ["failed"]
    assert statuses(often[:4], constant[:4]) == ["coarse"]
    assert statuses(often, often) == ["passed"]
    assert statuses(constant, constant) == ["blind"]


def softmax(values: Array, axis: int) -> Array:
    powers = np.exp(values - values.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@given(seed=SEEDS, steps=st.sampled_from([255, 65535]), samples=st.integers(1, 12), noise=st.floats(0, 0.3))
def test_no_healthy_output_fails(seed: int, steps: int, samples: int, noise: float) -> None:
    """Probabilities of classes that never occur, rarely active channels, saturated values, and values with offsets."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(samples, 1, 8, 12, 12)) * random.uniform(0.1, 8)
    logits[:, :, 5:] -= random.uniform(0, 20)
    vectors = random.normal(size=(samples, 1, 40)) * random.uniform(0.1, 3)
    worse, moved = (values + noise * values.std() * random.normal(size=values.shape) for values in (logits, vectors))
    outputs = [
        (softmax(logits, 2), softmax(worse, 2)),
        (np.maximum(vectors - 2, 0), np.maximum(moved - 2, 0)),
        (1 / (1 + np.exp(-vectors - 8)), 1 / (1 + np.exp(-moved - 8))),
        (vectors + 200, moved + 200),
    ]
    for eager, device in outputs:
        step = max(float(np.ptp(eager)), float(np.abs(eager).max()), 1e-9) / steps
        assert "failed" not in statuses(eager.astype(np.float32), rounded(device, step), Assembly(step=step))


def test_outputs_without_finite_values_or_of_other_shapes_are_unclear() -> None:
    eager = smooth(5, 3, 4)
    assert statuses(eager, np.full_like(eager, np.nan)) == ["unclear", "unclear"]
    assert statuses(eager, eager[:, :2]) == ["unclear", "unclear"]


@pytest.mark.parametrize("shape", [(1, 1), (3, 1, 0), (2, 1)])
def test_outputs_of_one_or_no_element_end_no_search(shape: tuple[int, ...]) -> None:
    assert "failed" not in statuses(np.ones(shape, np.float32), np.zeros(shape, np.float32))
