"""The changes for errors of the device's kernels that are certain to go: another grid, and another kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qnnsweep.conf.schemes import SchemeOverride
from qnnsweep.tasks.records import LoweredProgram, Quantization, Trial, WrittenGrid
from qnnsweep.tasks.records.vocabulary import Rung
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from qnnsweep.tasks.repair.cures import Promise
from tests.repair.sample_cells import ADD, BYTES, cell, operator, scheme
from tests.sample_records import ANSWER, with_method

HELD = "a range that the device's kernel holds"


def writing(lowered: LoweredProgram, *grids: tuple[Quantization, float]) -> LoweredProgram:
    written = tuple(
        WrittenGrid(operator=index, quantization=grid, held=(0.0, end)) for index, (grid, end) in enumerate(grids)
    )
    return with_method(lowered, design=replace(lowered.methods[0].design, written=written))


def steps(scale: float) -> Quantization:
    return replace(BYTES, scale=(scale,))


def offered_for_cast(read: Quantization, largest: float) -> list[Candidate]:
    comparison, lowered = cell(
        [operator("cast", "aten._to_copy.default", read)], {("device", "cast"): 0.9}, cast={"largest_value": largest}
    )
    found = candidates(comparison, writing(lowered, (steps(1.0), 255.0)), scheme("8a8w"))
    return [candidate for candidate in found if candidate.change == HELD]


def test_all_kernels_that_write_another_grid_are_one_candidate_although_the_error_is_seen_behind_them() -> None:
    softmax = replace(BYTES, scale=(1.5 * 2**-16,))
    rows = [operator("cast", "aten._to_copy.default"), operator("p", "aten._softmax.default", softmax)]
    rows += [operator("q", "aten._softmax.default", replace(BYTES, scale=(250.2 * 2**-16,))), operator("div", ADD)]
    comparison, lowered = cell(rows, {("device", "div"): 0.2, ("resolution", "div"): 0.79})
    lowered = writing(lowered, (steps(1.0), 255.0), (steps(2.0**-16), 0.0079), (steps(250 * 2.0**-16), 0.98))
    offered = candidates(comparison, lowered, scheme("8a8w"))
    held = offered[0]
    assert held.change == HELD, "of a known error, and therefore the first"
    assert max(offered, key=lambda each: each.estimated_db / each.cost) is not held
    assert held.device_share == 0, "the design has the error, so that the trial shows what the change removes"
    assert held.operators == ("cast", "p"), "the values of q are wrong by less than a step"
    assert held.estimated_db == pytest.approx(0.97, abs=0.05), "the whole error of the device"
    assert held.scheme.overrides == [
        SchemeOverride(node="node_cast", range=[0.0, 255.0]),
        SchemeOverride(node="node_p", range=[0.0, 0.0079]),
    ]


def test_all_batch_norms_become_convolutions_although_the_error_of_the_last_hides_that_of_the_others() -> None:
    norms = [operator(f"norm{index}", "aten._native_batch_norm_legit_no_training.default", None) for index in (0, 1)]
    norms = [replace(norm, shape=None) for norm in norms]
    items = [operator(f"item{index}", "getitem", sources=(index,)) for index in (0, 1)]
    comparison, lowered = cell([*norms, *items], {("device", "item1"): 0.99})
    first = candidates(comparison, lowered, scheme("16a8w"))[0]
    assert (first.change, first.operators) == ("a depthwise convolution", ("item1", "item0"))
    assert first.scheme.overrides == [SchemeOverride(node=f"node_item{index}", as_conv2d=True) for index in (1, 0)]


@pytest.mark.parametrize(("change", "gain_db"), [("a depthwise convolution", 20), ("the CPU", 20), ("16-bit float", 0)])
def test_another_kernel_certainly_removes_the_error_of_the_one_before(change: str, gain_db: float) -> None:
    norm = operator("norm", "aten._native_batch_norm_legit_no_training.default", None, shape=None)
    comparison, lowered = cell([norm, operator("item", "getitem", sources=(0,))], {("device", "item"): 0.999})
    rungs: dict[Rung, float] = {"designed": 30.0, "device": 10.0}
    rows = [
        replace(ANSWER, rung=rung, sample=sample, gap=replace(ANSWER.gap, snr_db=snr_db))
        for rung, snr_db in rungs.items()
        for sample in (0, 1)
    ]
    comparison = replace(comparison, outputs=tuple(rows))
    (offered,) = [each for each in candidates(comparison, lowered, scheme("16a8w")) if each.change == change]
    trial = Trial(cause="device", change=change, operators=("item",), noise=(0.001, 0.001), refused=None)
    cure = Promise(comparison, lowered).of(offered, trial)
    assert cure is not None
    assert cure.predicted_db == pytest.approx(gain_db, abs=0.5)


def test_a_cast_with_values_beyond_the_range_that_the_kernel_holds_has_no_such_change() -> None:
    assert len(offered_for_cast(steps(3.9), 200.0)) == 1
    assert offered_for_cast(steps(3.9), 995.0) == []


def test_a_cast_with_another_zero_point_is_wrong_although_its_step_is_right() -> None:
    assert len(offered_for_cast(replace(steps(1.0), zero_point=(100,)), 150.0)) == 1
    assert offered_for_cast(steps(1.001), 200.0) == []
