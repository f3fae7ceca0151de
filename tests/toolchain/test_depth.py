"""What the HTP computes of a convolution whose stride in depth leaves a depth of one, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from tests.toolchain.small_models import device_snr_db, quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def snr_db(sliced: bool, scheme: str, resources: Resources) -> float:
    ask = load([f"scheme={scheme}", "soc=SM8650", "measure.dump_operators=false"]).cells[0].request
    quantized = quantized_model(ask, resources, "depth_models", 1, name="depth", arguments={"sliced": sliced})
    return device_snr_db(ask, quantized, resources)


@pytest.mark.parametrize("scheme", ["8a8w", "fp16"])
def test_a_stride_in_depth_that_leaves_a_depth_of_one_is_wrong_and_its_slice_is_right(
    scheme: str, resources: Resources
) -> None:
    assert snr_db(False, scheme, resources) < 10
    assert snr_db(True, scheme, resources) > 30
