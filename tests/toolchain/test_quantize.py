"""The float weights that the quantization stores, compared with the rounded weights of the lowered program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load

from qnnsweep.conf.load import load as load_plan
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.comparison.weights import WeightErrors
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import LoweredProgram

import rounded_weights  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

PER_CHANNEL = "quantized_decomposed.dequantize_per_channel.default"
PER_TENSOR = "quantized_decomposed.dequantize_per_tensor.default"
PER_BLOCK = "torchao.dequantize_affine.default"
Lower = Callable[..., LoweredProgram]


@pytest.fixture(scope="module")
def lower_as(resources: Resources, lowered: LoweredProgram) -> Lower:
    """A function that quantizes and lowers the model of `lowered` in another way, without a debug program."""

    def lower_with(*overrides: str) -> LoweredProgram:
        ask = load_plan(["model=digits_cnn", "soc=SM8650", "measure.dump_operators=false", *overrides]).cells[0].request
        tools: Any = {"store": resources.store, "workers": resources.workers}
        quantized = quantize(lowered.quantized.exported, ask.scheme, ask.backend.kind, **tools)
        return lower(quantized, ask.soc if ask.backend.kind == "qnn" else None, lowering_options(ask), **tools)

    return lower_with


def test_the_float_weights_are_those_of_every_convolution_and_linear_layer(
    lowered: LoweredProgram, resources: Resources
) -> None:
    """The batch norms are folded into the convolutions, which therefore have biases."""
    blob = lowered.quantized.methods[0].float_weights
    assert blob is not None
    floats = load(resources.store.read(blob))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in floats.items()} == {
        "activation_post_process_1": (np.float32, (16, 1, 3, 3)),
        "activation_post_process_2": (np.float32, (16,)),
        "activation_post_process_5": (np.float32, (32, 16, 3, 3)),
        "activation_post_process_6": (np.float32, (32,)),
        "activation_post_process_11": (np.float32, (10, 512)),
        "activation_post_process_12": (np.float32, (10,)),
    }


def test_every_weight_and_bias_has_its_float_tensor(lowered: LoweredProgram, resources: Resources) -> None:
    errors = resources.workers.call("compare", rounded_weights.errors, lowered, resources.store).value
    assert errors.unknown == ()
    assert {
        lowered.methods[0].operators[index].source_nodes: error.shape for index, error in errors.by_operator.items()
    } == {
        ("activation_post_process_1",): (16, 1, 3, 3),
        ("activation_post_process_2",): (16,),
        ("activation_post_process_5",): (32, 16, 3, 3),
        ("activation_post_process_6",): (32,),
        ("activation_post_process_11",): (10, 512),
        ("activation_post_process_12",): (10,),
    }


@pytest.mark.parametrize(
    ("overrides", "targets"),
    [
        (["scheme=8a8w"], [PER_CHANNEL] * 6),
        (["scheme=16a4w_block"], [PER_CHANNEL, PER_BLOCK, PER_BLOCK, PER_CHANNEL, PER_CHANNEL, PER_CHANNEL]),
        (["scheme=8a8w", "scheme.per_channel_conv=false", "scheme.per_channel_linear=false"], [PER_TENSOR] * 6),
        (["scheme=8a8w", "backend=xnnpack"], [PER_CHANNEL] * 3),
    ],
    ids=["per channel", "per block", "per tensor", "XNNPACK, whose biases stay float"],
)
def test_a_weight_is_rounded_by_at_most_half_a_step_of_its_grid(
    overrides: list[str], targets: list[str], lower_as: Lower, resources: Resources
) -> None:
    lowered = lower_as(*overrides)
    largest = resources.workers.call("compare", rounded_weights.largest_in_steps, lowered, resources.store).value
    assert [target for target, _, _ in largest] == targets
    # A little more than half a step, because torch multiplies by the inverse of the step in float32.
    assert [entry for entry in largest if entry[2] > 0.5001] == []
    # Each weight is large, so that one of its elements is nearly in the middle between two steps.
    assert [entry for entry in largest if entry[1] > 1 and entry[2] < 0.4] == []


def test_a_quantized_program_holds_what_its_graph_reads_and_nothing_else(
    lowered: LoweredProgram, resources: Resources
) -> None:
    """torchao keeps the float weights that it has rounded, which are most of the memory of a conversion."""
    program = lowered.quantized.methods[0].program
    held, read = resources.workers.call("quantize", rounded_weights.held_and_read, program, resources.store).value
    assert held == read
    assert "_frozen_param0" in held


def test_a_float_scheme_has_no_float_weights(lower_as: Lower, resources: Resources) -> None:
    lowered = lower_as("scheme=fp32", "backend=portable")
    assert lowered.quantized.methods[0].float_weights is None
    errors = resources.workers.call("compare", rounded_weights.errors, lowered, resources.store).value
    assert errors == WeightErrors(by_operator={}, unknown=())
