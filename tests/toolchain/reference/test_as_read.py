"""The constants of a graph as the device reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import call_graphs  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def test_only_the_16_bit_weights_of_convolutions_and_linear_layers_saturate(resources: Resources) -> None:
    read = resources.workers.call("compare", call_graphs.weights_as_read).value
    assert read == {"weight": [-32767, 32639], "norm": [-32767, 32767]}
