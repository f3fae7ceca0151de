"""The quantized models of the tests: a module of the tests has the model and its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.export import export
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import QuantizedModel

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources


def quantized_model(ask: Request, resources: Resources, module: str, count: int, **fields: Any) -> QuantizedModel:
    """Export and quantize the model of `module:build`.

    `ask`: has the scheme and the backend. `count`: how many of `module:samples` calibrate and are evaluated. `fields`:
    the other keys of the model.
    """
    data = DataConfig(source=f"{module}:samples", count=count)
    model = ModelConfig(factory=f"{module}:build", calibration=data, evaluation=data, **fields)
    tools: Any = {"store": resources.store, "workers": resources.workers}
    return quantize(export(model, "", **tools), ask.scheme, ask.backend.kind, **tools)
