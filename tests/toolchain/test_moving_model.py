"""A program that only moves, compares and counts values has no kernel of the type of the scheme, and is healthy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import InputConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

ASK = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650"]).cells[0].request


@pytest.fixture(scope="module")
def moving(resources: Resources) -> LoweredProgram:
    inputs = [
        InputConfig(name="x", shape=[3, 4]),
        InputConfig(name="flags", shape=[3, 3], dtype="bool"),
        InputConfig(name="counts", shape=[10], dtype="int64"),
    ]
    quantized = quantized_model(ASK, resources, "moving_model", 2, name="moving", inputs=inputs)
    options = replace(lowering_options(ASK), operator_samples=1)
    return lower(quantized, ASK.soc, options, store=resources.store, workers=resources.workers)


@pytest.fixture(scope="module")
def comparison(moving: LoweredProgram, resources: Resources) -> Comparison:
    programs = bundle(moving, ASK.measure, store=resources.store)
    capture = measure(programs, (ASK.device,), None, store=resources.store, farm=resources.farm)
    options = ComparisonOptions(classifier=False, tolerances=of_scheme(ASK.tolerance.operators, ASK.scheme.name))
    return compare(moving, capture, options, store=resources.store, workers=resources.workers)


def test_the_audit_reports_that_no_operator_computes_in_the_type_of_the_scheme(moving: LoweredProgram) -> None:
    check = next(check for check in moving.checks if check.check == "activation element of the kernels")
    assert (check.program, check.asked, check.got, check.status) == ("shipping", "fixed16", None, "unread")
    assert check.reason is not None
    assert check.reason.startswith(
        "no operator computes in fixed16: the program only moves, compares or counts values (float16, float32"
    )


def test_the_audit_names_the_dimension_that_the_compiler_added(moving: LoweredProgram) -> None:
    outputs = [check for check in moving.checks if (check.program, check.check) == ("shipping", "output")]
    assert [(check.asked, check.got, check.status) for check in outputs] == [
        (*["float32[1, 12] in axis order [0, 1]"] * 2, "met"),
        ("bool[] in axis order []", "bool[1] in axis order [0]", "met"),
        (*["int64[10] in axis order [0]"] * 2, "met"),
    ]
    assert [check.reason for check in outputs] == [
        None,
        "the compiler added a dimension of 1, because its tensors have at least one; the bytes are the same",
        None,
    ]


def test_every_output_is_right_and_no_operator_introduces_error(comparison: Comparison) -> None:
    device = [row for row in comparison.outputs if row.rung == "device" and row.output != "0"]
    assert {(row.output, row.status) for row in device} == {("1", "exact"), ("2", "exact")}
    assert not [row.operator.name for row in comparison.operators if row.verdict in ("introduced", "biased")]
    scalars = [row for row in comparison.operators if row.operator.shape == () and not row.operator.constant]
    assert {(row.status, row.verdict) for row in scalars} == {("exact", "exact")}


def test_64_bit_integers_of_which_the_log_has_one_byte_each_are_not_compared(comparison: Comparison) -> None:
    bytes_only = [row for row in comparison.operators if row.status == "dtype_differs"]
    assert [(row.operator.target, row.operator.dtype, row.verdict) for row in bytes_only] == [
        ("aten._to_copy.default", "int64", "blind")
    ]
