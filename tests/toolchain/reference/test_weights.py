"""The weights of an edge graph: elements, bits and readers, in float and as ExecuTorch's quantizer rounds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.export import export_task
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from tests.computed import computed
from tests.toolchain.weighted import float_weights

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def test_a_weight_names_all_its_readers_and_an_addend_is_no_weight(resources: Resources) -> None:
    targets, weights = resources.workers.call("lower", float_weights).value
    found = [([targets[reader] for reader in weight.readers], weight.elements) for weight in weights]
    assert found == [
        (["aten.embedding.default"], 80),
        (["aten.addmm.default", "aten.addmm.default"], 64),
        (["aten.convolution.default"], 20),
    ]
    assert {weight.element_bits for weight in weights} == {None}


def test_a_weight_has_the_bits_of_the_overrides(resources: Resources) -> None:
    overrides = "scheme.overrides=[{node:conv2d,quant_dtype:16a4w},{operator:linear,quant_dtype:16a16w}]"
    ask = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650", overrides]).cells[0].request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    exported = computed(export_task, ask.model, "", **tools)
    quantized = quantize(exported, ask.scheme, ask.backend.kind, **tools)
    (method,) = lower(quantized, ask.soc, lowering_options(ask), **tools).methods
    found = [
        (method.operators[weight.readers[0]].target, weight.elements, weight.element_bits) for weight in method.weights
    ]
    assert found == [
        ("aten.convolution.default", 16 * 9, 4.0),
        ("aten.convolution.default", 32 * 16 * 9, 8.0),
        ("aten.linear.default", 10 * 512, 16.0),
    ]
    assert method.weight_bits == 4 * 144 + 8 * 4608 + 16 * 5120
