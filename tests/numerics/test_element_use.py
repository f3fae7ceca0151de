"""Which elements of an operator's value are used, and the readers that mask the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qnnsweep.tasks.numerics.dequantize import dequantize
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue, ElementUse
from qnnsweep.tasks.records import Quantization
from tests.numerics.numpy_device import quantization

from tests.numerics.numpy_graph import (  # isort: skip
    Op, Program, above, added, chosen, constant, entry, gathered, getitem, matmul, max_pool, mean, multiplied,
    refused, relu, relu6, scaled, sign, sliced, softmax, split, topk, transposed, viewed,
)  # fmt: skip

ELEMENTS = st.floats(-12, 12, width=32).map(lambda x: round(x * 8) / 8)
TWO = hnp.arrays(np.float32, (2, 4), elements=ELEMENTS)


def used_elements(
    program: Program, actual: Any, expected: Any, captured: dict[int, CapturedValue] | None = None
) -> tuple[Any, Any]:
    """Return the used mask of operator 0, with `actual` instead of `expected`, and the readers that mask elements.

    The mask is None if all elements are used.
    """
    actual, expected = np.asarray(actual, np.float32), np.asarray(expected, np.float32)
    program.ops[0] = entry(actual)
    used_mask, masking_readers = ElementUse(program, captured or {}, program.run()).used_mask(0, actual, expected)
    return None if used_mask is None else used_mask.tolist(), masking_readers


def read_by(*ops: Op) -> Program:
    """Return a program of an input and the operators, of which the last is the final output."""
    program = Program([entry(np.zeros((2, 4), np.float32)), *ops])
    program.output_ops = [len(program.ops) - 1]
    return program


def test_a_final_output_is_used_whatever_else_reads_it() -> None:
    program = read_by(relu(0))
    program.output_ops = [0, 1]
    assert used_elements(program, [-1, -1], [-2, 3]) == (None, ())


def test_a_value_without_readers_is_unused() -> None:
    program = Program([entry(0.0), entry(1.0)], [1])
    assert used_elements(program, [1, 2], [1, 3]) == ([False, False], ())


@pytest.mark.parametrize(
    ("actual", "expected", "read"),
    [
        (-61.8, -3, False),
        (61.8, 7, False),
        (0, -3, False),
        (6, 9, False),
        (-61.8, 0.5, True),
        (61.8, 5, True),
        (61.8, -3, True),  # the derivative is zero at both, and the results differ
        (3, 3.25, True),
        (3, 3, True),
    ],
)
def test_a_clamp_uses_elements_inside_its_range_on_either_side(actual: float, expected: float, read: bool) -> None:
    assert used_elements(read_by(relu6(0)), [actual, 1], [expected, 1]) == (
        (None, ()) if read else ([False, True], (1,))
    )


@given(TWO, TWO)
def test_a_clamp_uses_exactly_the_elements_that_its_result_depends_on(actual: Array, expected: Array) -> None:
    used_mask, _ = used_elements(read_by(relu6(0)), actual, expected)
    inside = ((actual > 0) & (actual < 6)) | ((expected > 0) & (expected < 6))
    used = inside | (np.clip(actual, 0, 6) != np.clip(expected, 0, 6))
    assert used_mask == (None if used.all() else used.tolist())


def test_a_maximum_uses_the_largest_element_of_either_side() -> None:
    program = read_by(max_pool(0), getitem(1, 0))
    #                                       not largest  was largest  became largest
    assert used_elements(program, [1, 5, 4, 0, 9, 1], [2, 5, 4, 7, 3, 1]) == (
        [False, True, True, True, True, False],
        (1,),
    )


def test_topk_uses_the_k_largest_elements_only() -> None:
    program = read_by(topk(0, 2), getitem(1, 0))
    assert used_elements(program, [1, 5, 4, 0], [3, 5, 4, 2]) == ([False, True, True, False], (1,))


def test_a_reader_of_indices_without_a_derivative_uses_everything() -> None:
    program = read_by(topk(0, 2), getitem(1, 1))
    assert used_elements(program, [1, 5, 4, 0], [3, 5, 4, 2]) == (None, ())


def test_a_slice_uses_its_part() -> None:
    assert used_elements(read_by(sliced(0, 1, 3)), [1, 2, 3, 4], [9, 9, 9, 9]) == ([False, True, True, False], (1,))


def test_two_slices_use_the_parts_of_both() -> None:
    program = read_by(sliced(0, 0, 1), sliced(0, 2, 4))
    program.output_ops = [1, 2]
    assert used_elements(program, [1, 2, 3, 4], [9, 9, 9, 9]) == ([True, False, True, True], (1, 2))


def test_an_output_of_a_tuple_without_a_getitem_is_unused() -> None:
    program = read_by(split(0), getitem(1, 1), scaled(2, 2))
    assert used_elements(program, [1, 2, 3, 4], [9, 9, 9, 9]) == ([False, False, True, True], (1,))


def test_an_element_that_is_multiplied_by_zero_is_unused() -> None:
    program = read_by(constant(np.array([0, 1, 0, -2], np.float32)), multiplied(0, 1))
    assert used_elements(program, [5, 5, 5, 5], [1, 2, 3, 4]) == ([False, True, False, True], (2,))


def test_a_square_uses_elements_that_differ_at_its_minimum() -> None:
    program = read_by(multiplied(0, 0))
    # 3 and -3 have the same square, but are used: the derivative is not zero on either side.
    assert used_elements(program, [0, 1, 0, -3], [1, 0, 0, 3]) == ([True, True, False, True], (1,))


def test_a_derivative_of_zero_on_both_sides_does_not_hide_a_jump_between_them() -> None:
    assert used_elements(read_by(sign(0)), [1, -1, 3], [2, 1, 4]) == ([False, True, False], (1,))


def test_a_mean_uses_everything() -> None:
    assert used_elements(read_by(mean(0)), [[1, 2], [3, 4]], [[1, 9], [3, 9]]) == (None, ())


def test_derivatives_that_cancel_in_a_sum_are_found() -> None:
    # The columns of a softmax's derivative add up to zero.
    assert used_elements(read_by(softmax(0)), [1, 2, 3], [1, 2.5, 3]) == (None, ())


@pytest.mark.parametrize("way", [[transposed(0), mean(1)], [viewed(0), mean(1)], [transposed(0), viewed(1), mean(2)]])
def test_the_reader_behind_a_data_movement_decides(way: list[Op]) -> None:
    assert used_elements(read_by(*way), [[1, 2], [3, 4]], [[1, 9], [3, 9]]) == (None, ())


@pytest.mark.parametrize("way", [[viewed(0), relu6(1)], [transposed(0), relu6(1)], [transposed(0), viewed(1), relu(2)]])
def test_a_clamp_behind_a_permutation_masks_the_right_positions(way: list[Op]) -> None:
    assert used_elements(read_by(*way), [[-9, 2], [3, -4]], [[-1, 9], [-2, -5]]) == (
        [[False, True], [True, False]],
        (1,),
    )


def test_the_used_elements_of_two_readers_are_united() -> None:
    program = read_by(relu(0), scaled(0, -1.0), relu(2))
    program.output_ops = [1, 3]
    # The relu of the negative uses the first element, the other relu the second.
    assert used_elements(program, [-9, 9], [-1, 1]) == (None, (1,))


def test_a_reader_that_the_host_cannot_compute_uses_everything() -> None:
    assert used_elements(read_by(refused(0, "no such kernel")), [1, 2], [1, 3]) == (None, ())
    deep = read_by(refused(0, "no such kernel"), relu(0))
    assert used_elements(deep, [-1, 2], [-2, 2]) == (None, (2,))


def test_where_uses_the_chosen_side_and_the_whole_condition() -> None:
    condition = np.array([True, False, True])
    program = read_by(constant(condition), constant(np.zeros(3, np.float32)), chosen(1, 0, 2))
    assert used_elements(program, [1, 2, 3], [4, 5, 6]) == ([True, False, True], (3,))
    assert ElementUse(program, {}, program.run()).used_mask(1, condition, ~condition) == (None, ())


def test_gather_uses_the_elements_at_its_indices_and_all_indices() -> None:
    positions = np.array([2, 0, 2])
    program = read_by(constant(positions), gathered(0, 1))
    assert used_elements(program, [1, 2, 3, 4], [9, 9, 9, 9]) == ([True, False, True, False], (2,))
    assert ElementUse(program, {}, program.run()).used_mask(1, positions, np.array([2, 1, 2])) == (None, ())


def test_a_comparison_without_a_derivative_uses_everything() -> None:
    assert used_elements(read_by(above(0, 1.0)), [0, 2], [0.5, 3]) == (None, ())


@pytest.mark.parametrize(("step", "read"), [(0.5, [False, False, True]), (0.01, [False, True, True])])
def test_a_difference_below_the_readers_grid_does_not_count(step: float, read: list[bool]) -> None:
    """A reader whose derivative is zero on both sides: its results are distinguished by its own grid only."""

    def rounded(x: Array) -> Array:
        return np.floor(x * 5) / 5

    program = read_by(Op(reads=(0,), forward=rounded, pullback=lambda w, x: [np.zeros_like(x)]))
    captured = {1: CapturedValue(elements=np.zeros(3, np.int64), qparams=quantization(step))}
    assert used_elements(program, [0.1, 0.1, 0.1], [0.15, 0.25, 0.65], captured)[0] == read


def test_the_finest_step_of_a_per_channel_grid_decides() -> None:
    finest = Quantization(scale=(9.0, 0.1), zero_point=(0, 0), axis=0, quant_min=-128, quant_max=127, dtype="int8")
    captured = {1: CapturedValue(elements=np.zeros(2, np.int8), qparams=finest)}
    assert used_elements(read_by(sign(0)), [1, -1], [1, 1], captured)[0] == [False, True]
    assert np.array_equal(captured[1].dequantized(), dequantize(np.zeros(2, np.int8), finest))


def test_a_nan_is_used() -> None:
    # The derivative at a NaN is NaN, which does not show that the element is unused.
    program = read_by(multiplied(0, 0))
    assert used_elements(program, [np.nan, 1], [1, 1])[0] is None


def test_an_infinity_that_a_clamp_cuts_off_is_unused() -> None:
    assert used_elements(read_by(relu6(0)), [np.inf, -np.inf, 1], [7, -3, 1]) == ([False, False, True], (1,))


def test_an_element_is_used_beside_one_that_is_far_larger() -> None:
    program = read_by(constant(np.array([0, 0, 0, np.finfo(np.float32).min], np.float32)), added(0, 1))
    used_mask, _ = used_elements(program, [1, 3, 2, 4], [1, 2, 3, 4])
    assert (used_mask or [True] * 4)[:3] == [True, True, True]


@pytest.mark.parametrize("size", [1.0, 1e-35, 1e35])
def test_the_unit_of_a_value_makes_no_difference(size: float) -> None:
    actual, expected = size * np.array([1, -3, 2, -4]), size * np.array([1, -2, 3, -4])
    assert used_elements(read_by(relu(0)), actual, expected) == ([True, False, True, False], (1,))
    assert used_elements(read_by(mean(0)), actual, expected) == (None, ())


def test_the_elements_that_a_reader_would_use_of_another_value_are_found() -> None:
    program = read_by(relu(0))
    value = np.array([-1, 2, -3], np.float32)
    use = ElementUse(program, {}, program.run() | {0: value})
    assert use.read_mask(0, np.abs(value)) is None
    mask = use.read_mask(0, -value)
    assert mask is not None
    assert mask.tolist() == [True, False, True]


READERS = st.sampled_from(
    [
        relu, relu6, sign, softmax, mean, transposed, viewed, lambda x: scaled(x, 0.0), lambda x: scaled(x, -2.0),
        lambda x: sliced(x, 0, 1), lambda x: added(x, x), lambda x: multiplied(x, x), lambda x: multiplied(x, 0),
        lambda x: above(x, 0.0),
    ]
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program of direct and indirect readers of operator 0; the operators without readers are final outputs."""
    program = Program([entry(np.zeros((2, 4), np.float32))])
    for _ in range(draw(st.integers(1, 5))):
        source = draw(st.integers(0, len(program.ops) - 1))
        program.add(draw(READERS)(source))
    weight = draw(hnp.arrays(np.float32, (4, 2), elements=st.sampled_from([0.0, 1.0, -0.5])))
    program.add(matmul(0, weight))
    used = {source for op in program.ops for source in op.reads}
    program.output_ops = [index for index in range(len(program.ops)) if index not in used]
    return program


@given(programs().filter(Program.fits), TWO, TWO)
def test_unused_elements_change_no_final_output(program: Program, actual: Array, expected: Array) -> None:
    used_mask = used_elements(program, actual, expected)[0]
    corrected = actual if used_mask is None else np.where(used_mask, actual, expected)
    answers = []
    for value in (actual, corrected):
        program.ops[0] = entry(value)
        answers.append(program.answer(program.run()))
    for wrong, right in zip(*answers, strict=True):
        np.testing.assert_allclose(wrong.astype(float), right.astype(float), rtol=1e-5, atol=1e-5)
