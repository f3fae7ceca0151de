"""The quantized models of the tests: a module of the tests has the model and its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import QuantizedModel
from qnnsweep.tasks.toolchain.tensors import read_tensors

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources


def quantized_model(
    ask: Request, resources: Resources, module: str, count: int, samples: Any = None, **fields: Any
) -> QuantizedModel:
    """Export and quantize the model of `module:build`.

    `ask`: has the scheme and the backend. `count`: how many of `module:samples` calibrate and are evaluated. `samples`:
    the arguments of this function. `fields`: the other keys of the model.
    """
    data = DataConfig(source=f"{module}:samples", arguments=samples or {}, count=count)
    model = ModelConfig(factory=f"{module}:build", calibration=data, evaluation=data, **fields)
    tools: Any = {"store": resources.store, "workers": resources.workers}
    return quantize(export(model, "", **tools), ask.scheme, ask.backend.kind, **tools)


def device_snr_db(ask: Request, quantized: QuantizedModel, resources: Resources) -> float:
    """Compile a model with one output and one sample, run it, and return the output's SNR against eager PyTorch."""
    lowered = lower(quantized, ask.soc, lowering_options(ask), store=resources.store, workers=resources.workers)
    farm: Any = {"store": resources.store, "farm": resources.farm}
    capture = measure(bundle(lowered, ask.measure, store=resources.store), ask.devices, ask.soc, **farm)
    (method,), (captured,) = lowered.methods, capture.methods
    (eager,) = read_tensors(resources.store, method.exported.outputs_eager).values()
    (device,) = read_tensors(resources.store, captured.outputs).values()
    return float(20 * torch.log10(eager.norm() / (device - eager).norm()))
