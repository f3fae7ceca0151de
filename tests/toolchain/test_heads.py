"""What the HTP computes of heads that are normalised one by one, by the number of tokens and by the scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.toolchain.tensors import read_tensors

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def snr_db(tokens: int, scheme: str, resources: Resources) -> float:
    ask = load([f"scheme={scheme}", "soc=SM8650", "measure.dump_operators=false"]).cells[0].request
    data = DataConfig(source="heads_models:samples", arguments={"tokens": tokens}, count=1)
    model = ModelConfig(
        name="heads", factory="heads_models:build", arguments={"tokens": tokens}, calibration=data, evaluation=data
    )
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(model, "", **tools), ask.scheme, ask.backend.kind, **tools)
    lowered = lower(quantized, ask.soc, lowering_options(ask), **tools)
    farm: Any = {"store": resources.store, "farm": resources.farm}
    capture = measure(bundle(lowered, ask.measure, store=resources.store), ask.devices, ask.soc, **farm)
    (method,), (captured,) = lowered.methods, capture.methods
    (eager,) = read_tensors(resources.store, method.exported.outputs_eager).values()
    (device,) = read_tensors(resources.store, captured.outputs).values()
    return float(20 * torch.log10(eager.norm() / (device - eager).norm()))


@pytest.mark.parametrize(
    ("tokens", "scheme", "is_right"),
    [(8, "fp16", True), (32, "fp16", False), (64, "fp16", False), (128, "fp16", True), (32, "16a8w", True)],
)
def test_heads_of_16_to_64_tokens_are_wrong_in_float16_only(
    tokens: int, scheme: str, is_right: bool, resources: Resources
) -> None:
    found = snr_db(tokens, scheme, resources)
    assert found > 30 if is_right else found < 10
