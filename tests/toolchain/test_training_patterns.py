"""The conversion of a quantized graph without the patterns of quantization-aware training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.toolchain.training_models import compare_conversions, is_left_out

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


@pytest.mark.parametrize(
    ("between", "expected"), [("relu", True), ("", True), ("division", False), ("division and bias", False)]
)
def test_the_search_is_left_out_only_where_no_pattern_can_be(
    resources: Resources, between: str, expected: bool
) -> None:
    assert resources.workers.call("quantize", is_left_out, between).value is expected


@pytest.mark.slow
def test_the_graph_is_that_of_torchao(resources: Resources) -> None:
    resources.workers.call("quantize", compare_conversions)
