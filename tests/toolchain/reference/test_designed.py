"""The rung `designed`: the edge graph with every value rounded to its grid, on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load

from qnnsweep.tasks.records import LoweredProgram, Quantization
from tests.sample_records import with_method

import graphs  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

BYTES = Quantization(scale=(0.1,), zero_point=(12,), axis=None, quant_min=0, quant_max=255, dtype="uint8")
WORDS = Quantization(scale=(2e-4,), zero_point=(32768,), axis=None, quant_min=0, quant_max=65535, dtype="uint16")
CHANNELS = Quantization(
    scale=(0.1, 0.25, 3.0), zero_point=(0, 5, -7), axis=1, quant_min=-128, quant_max=127, dtype="int8"
)


def asked(resources: Resources, function: Any, *arguments: Any) -> Any:
    return resources.workers.call("compare", function, *arguments).value


def test_every_value_is_rounded_to_its_grid_except_constants_and_values_that_only_clamps_read(
    resources: Resources, lowered: LoweredProgram
) -> None:
    assert lowered.methods[0].outputs_designed is not None
    designed = load(resources.store.read(lowered.methods[0].outputs_designed))
    expected = asked(resources, graphs.designed_by_kernels, lowered, resources.store)
    assert (sorted(designed), len(designed)) == (sorted(expected), 8)
    assert [key for key in designed if not np.array_equal(designed[key], expected[key])] == []


@pytest.mark.parametrize(
    ("target", "has_effect"),
    [("aten.convolution.default", False), ("aten.relu.default", True), ("aten.linear.default", True)],
)
def test_the_grid_of_an_operator_that_only_a_clamp_reads_has_no_effect(
    resources: Resources, lowered: LoweredProgram, target: str, has_effect: bool
) -> None:
    operators = tuple(
        replace(operator, quantization=replace(BYTES, scale=(50.0,))) if operator.target == target else operator
        for operator in lowered.methods[0].operators
    )
    assert operators != lowered.methods[0].operators
    designed = asked(resources, graphs.designed, lowered, resources.store)
    other = asked(resources, graphs.designed, with_method(lowered, operators=operators), resources.store)
    assert any(not np.array_equal(designed[key], other[key]) for key in designed) == has_effect


def test_an_operator_that_the_host_cannot_compute_is_the_reason_why_there_are_no_outputs(
    resources: Resources, lowered: LoweredProgram
) -> None:
    relu = next(operator.index for operator in lowered.methods[0].operators if operator.target == "aten.relu.default")
    other = graphs.with_other_target(lowered, relu, "vendor.relu.default", resources.store)
    reason = asked(resources, graphs.designed, other, resources.store)
    assert reason == "vendor.relu.default is not registered on this host"
