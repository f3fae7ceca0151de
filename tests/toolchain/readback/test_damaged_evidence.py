"""What becomes of a capture whose files are damaged: a status for each operator, or an EvidenceError; nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions

import corrupted_evidence  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import WorkersWith

pytestmark = pytest.mark.toolchain

Compare = Callable[[Callable[[corrupted_evidence.Files], None]], Comparison]
Row = tuple[int, str, str, str, tuple[str, ...]]

RELU, CONVOLUTION, NEXT_RELU = "aten_relu_default", "aten_convolution_default_1", "aten_relu_default_1"


@pytest.fixture(scope="module")
def after(request_8a8w: Request, resources: Resources, lowered: LoweredProgram, capture: Capture) -> Compare:
    """The comparison of the session's capture after some damage."""

    def compare(damage: Callable[[corrupted_evidence.Files], None]) -> Comparison:
        work = (
            lowered,
            capture,
            ComparisonOptions(
                classifier=True, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name)
            ),
            resources.store,
        )
        return resources.workers.call("compare", corrupted_evidence.compared_after, damage, *work).value

    return compare


@pytest.fixture(scope="module")
def sound(after: Compare) -> Comparison:
    return after(corrupted_evidence.nothing)


def changes(sound: Comparison, damaged: Comparison) -> list[Row]:
    """The rows that the damage made others, with the number of the captured sample. All other rows are as before."""
    assert (damaged.outputs, damaged.profile, damaged.io_checks) == (sound.outputs, sound.profile, sound.io_checks)
    captured = sorted({row.sample for row in sound.operators})
    return [
        (captured.index(row.sample), row.operator.name, row.status, row.verdict, row.spans)
        for before, row in zip(sound.operators, damaged.operators, strict=True)
        if row != before
    ]


def test_the_order_of_the_events_means_nothing(sound: Comparison, after: Compare) -> None:
    assert {row.status for row in sound.operators} == {"compared", "masked", "constant", "tuple", "unused"}
    assert after(corrupted_evidence.events_reversed) == sound


# The first relu cannot be compared, and the convolution behind it answers for both.
UNSEEN = {
    corrupted_evidence.event_dropped: "not_dumped",
    corrupted_evidence.event_twice: "repeated",
    corrupted_evidence.tensor_empty: "shape_differs",
    corrupted_evidence.tensor_of_other_shape: "shape_differs",
}


@pytest.mark.parametrize(("damage", "status"), UNSEEN.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_operator_whose_event_is_damaged_says_so_and_the_next_one_answers_for_both(
    damage: Callable[[corrupted_evidence.Files], None], status: str, sound: Comparison, after: Compare
) -> None:
    damaged = after(damage)
    assert changes(sound, damaged) == [
        (0, RELU, status, "blind", ()),
        (0, CONVOLUTION, "masked", "within_grid", (RELU,)),
        # The convolution's unrounded result is not known exactly, so the relu is computed from the logged values.
        (0, NEXT_RELU, "masked", "within_grid", ()),
    ]
    assert damaged.unexpected_events == ()


def test_two_operators_that_exchanged_their_names_are_not_told_apart_by_their_shapes(
    sound: Comparison, after: Compare
) -> None:
    assert changes(sound, after(corrupted_evidence.names_exchanged)) == [
        (0, RELU, "shape_differs", "blind", ()),
        (0, CONVOLUTION, "masked", "within_grid", (RELU,)),
        (0, NEXT_RELU, "masked", "within_grid", ()),
        (0, "getitem", "shape_differs", "blind", ()),
        (0, "aten_view_copy_default", "compared", "inherited", ("aten_max_pool2d_with_indices_default",)),
    ]


def test_an_event_that_nobody_announced_is_told_and_changes_no_row(sound: Comparison, after: Compare) -> None:
    damaged = after(corrupted_evidence.event_extra)
    assert changes(sound, damaged) == []
    assert damaged.unexpected_events == ("aten_relu_default_17@0",)


def test_a_handle_that_two_tensors_claim_is_ambiguous(
    sound: Comparison, request_8a8w: Request, resources: Resources, lowered: LoweredProgram, capture: Capture
) -> None:
    work = (
        lowered,
        capture,
        ComparisonOptions(
            classifier=True, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name)
        ),
        resources.store,
    )
    damaged = resources.workers.call("compare", corrupted_evidence.compared_with_a_handle_announced_twice, *work).value
    assert changes(sound, damaged) == [
        (sample, name, status, verdict, spans)
        for sample, of_relu in enumerate(("masked", "masked"))
        for name, status, verdict, spans in (
            (RELU, "ambiguous", "blind", ()),
            (CONVOLUTION, "masked", "within_grid", (RELU,)),
            (NEXT_RELU, of_relu, "within_grid", ()),
        )
    ]


@pytest.mark.parametrize("damage", [corrupted_evidence.not_a_number, corrupted_evidence.infinite])
def test_one_element_that_is_no_number_is_the_operators_status_and_no_gap(
    damage: Callable[[corrupted_evidence.Files], None], sound: Comparison, after: Compare
) -> None:
    damaged = after(damage)
    # Only the log is damaged: the convolution's value follows from the right value of the relu.
    assert changes(sound, damaged) == [
        (0, RELU, "nonfinite_differs", "contradicted", ("aten_convolution_default",)),
        (0, CONVOLUTION, "masked", "within_grid", (RELU,)),
        (0, NEXT_RELU, "masked", "within_grid", ()),
    ]
    (row,) = [row for row in damaged.operators if row.status == "nonfinite_differs"]
    assert (row.gap, row.nonfinite_actual, row.nonfinite_reference) == (type(row.gap)(), 1, 0)


def test_a_number_at_the_end_of_float64_has_a_gap_without_the_part_that_overflows(
    sound: Comparison, after: Compare
) -> None:
    damaged = after(corrupted_evidence.huge)
    row = next(row for row in damaged.operators if row.operator.name == RELU)
    assert (row.status, row.verdict, row.gap.mse, row.gap.max_abs) == ("compared", "contradicted", None, 1.7e308)


REFUSED = {
    corrupted_evidence.buffer_truncated: (
        r"logged tensor aten_max_pool2d_with_indices_default@0 of run 1, uint8 of shape \[1, 4, 4, 32\] and strides "
        r"\[512, 128, 32, 1\] at byte \d+, reaches outside the debug buffer of \d+ bytes"
    ),
    corrupted_evidence.buffer_empty: (
        r"logged tensor aten_convolution_default@0 of run 1, uint8 of shape \[1, 8, 8, 16\] and strides "
        r"\[1024, 128, 16, 1\] at byte \d+, reaches outside the debug buffer of 0 bytes"
    ),
    corrupted_evidence.inference_dropped: "the debug program's etdump holds 1 inferences, but 2 were requested; "
    "measure again with reuse=programs",
    corrupted_evidence.tensor_of_unknown_type: (
        "logged tensor aten_relu_default@0 of run 1 has the type float8_e5m2, which NumPy lacks"
    ),
}


@pytest.mark.parametrize(("damage", "line"), REFUSED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_file_that_does_not_hold_what_it_says_is_no_evidence(
    damage: Callable[[corrupted_evidence.Files], None], line: str, after: Compare
) -> None:
    with pytest.raises(EvidenceError) as refused:
        after(damage)
    assert re.fullmatch(line, str(refused.value)), refused.value


def test_a_final_answer_that_is_no_number_is_its_rows_status(
    sound: Comparison, request_8a8w: Request, resources: Resources, lowered: LoweredProgram, capture: Capture
) -> None:
    work = (
        lowered,
        capture,
        ComparisonOptions(
            classifier=True, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name)
        ),
        resources.store,
    )
    damaged = resources.workers.call("compare", corrupted_evidence.compared_with_an_odd_answer, *work).value
    assert damaged.operators == sound.operators
    odd = [(row.rung, row.sample, row.top1_actual) for row in damaged.outputs if row.status == "nonfinite_differs"]
    assert odd == [("device", 0, None)]


# The shipping program's log is where the times come from.
FILES = [
    ("debug buffer", False), ("debug buffer", True), ("debug etdump", False), ("debug etdump", True), ("etdump", False),
]  # fmt: skip


@pytest.mark.parametrize(("field", "replay"), FILES, ids=lambda value: str(value))
def test_a_mutated_file_gives_every_operator_its_row_or_an_evidence_error_and_no_hang(
    field: str,
    replay: bool,
    request_8a8w: Request,
    resources: Resources,
    workers_with: WorkersWith,
    lowered: LoweredProgram,
    capture: Capture,
) -> None:
    options = ComparisonOptions(
        classifier=True, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name), replay=replay
    )
    work = (field, settings.default, lowered, capture, options, resources.store)
    damaged = workers_with(deadline_s=800).call("compare", corrupted_evidence.fuzzed, *work).value
    assert set(damaged) == {"compared", "refused"}
