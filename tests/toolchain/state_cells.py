"""Cells of the small models with states of state_model.py, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, DriverConfig, InputConfig, MethodConfig, ModelConfig, StateConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import comparison_options, lowering_options
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Bundle, LoweredProgram
from qnnsweep.tasks.results.outcome import CellResult

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources


def inputs(tokens: int) -> list[InputConfig]:
    return [
        InputConfig(name="tokens", shape=[1, tokens], dtype="int32"),
        InputConfig(name="mask", shape=[1, 1, tokens, 6]),
        InputConfig(name="position", shape=[1, tokens], dtype="int32"),
        InputConfig(name="k_0", shape=[1, 1, 8, 6 - tokens]),
        InputConfig(name="v_0", shape=[1, 1, 6 - tokens, 8]),
    ]


def state(method: str, name: str, axis: int) -> StateConfig:
    return StateConfig(method=method, output=name, to_method="decode", input=name, update="append", axis=axis)


MICRO = ModelConfig(
    name="micro",
    factory="state_model:micro_llama",
    methods=[
        MethodConfig(name=name, arguments={"tokens": tokens}, inputs=inputs(tokens))
        for name, tokens in (("prefill", 3), ("decode", 1))
    ],
    states=[state(method, *cache) for method in ("prefill", "decode") for cache in (("k_0", 3), ("v_0", 2))],
    driver=DriverConfig(output="logits", input="tokens"),
    calibration=DataConfig(source="state_model:sequences", arguments={"seed": 1}, count=64),
    evaluation=DataConfig(source="state_model:sequences", count=2),
)
LEAKY = ModelConfig(
    name="leaky",
    factory="state_model:Leaky",
    inputs=[InputConfig(name="sample", shape=[1, 4]), InputConfig(name="state", shape=[1, 8])],
    states=[StateConfig(output="1", input="state")],
    calibration=DataConfig(source="state_model:signals", arguments={"steps": 6, "seed": 1}, count=2),
    evaluation=DataConfig(source="state_model:signals", arguments={"steps": 20}, count=1),
)
EARS = ModelConfig(
    name="ears",
    factory="state_model:micro_whisper",
    methods=[
        MethodConfig(name="encode", function="encode", inputs=[InputConfig(name="mel", shape=[1, 4, 12])]),
        MethodConfig(
            name="decode",
            function="decode",
            inputs=[
                InputConfig(name="tokens", shape=[1, 1], dtype="int32"),
                InputConfig(name="mask", shape=[1, 1, 1, 5]),
                InputConfig(name="position", shape=[1, 1], dtype="int32"),
                InputConfig(name="k_0", shape=[1, 2, 8, 4]),
                InputConfig(name="v_0", shape=[1, 2, 4, 8]),
                InputConfig(name="cross_k_0", shape=[1, 2, 8, 6]),
                InputConfig(name="cross_v_0", shape=[1, 2, 6, 8]),
            ],
        ),
    ],
    states=[
        *(
            StateConfig(method="encode", output=name, to_method="decode", input=name)
            for name in ("cross_k_0", "cross_v_0")
        ),
        *(state("decode", *cache) for cache in (("k_0", 3), ("v_0", 2))),
    ],
    driver=DriverConfig(output="logits", input="tokens"),
    calibration=DataConfig(source="state_model:recordings", arguments={"seed": 1}, count=8),
    evaluation=DataConfig(source="state_model:recordings", count=1),
)


def request_of(model: ModelConfig, scheme: str) -> Request:
    overrides = [f"scheme={scheme}", "soc=SM8650", "measure.operator_samples=2"]
    return replace(load(["model=digits_cnn", *overrides]).cells[0].request, model=model)


def lowered_of(ask: Request, resources: Resources) -> LoweredProgram:
    tools: dict[str, Any] = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(ask.model, "", **tools), ask.scheme, ask.backend.kind, **tools)
    return lower(quantized, ask.soc, lowering_options(ask), **tools)


def measured(ask: Request, lowered: LoweredProgram, packed: Bundle, resources: Resources) -> CellResult:
    """Run a bundle, and compare what it returned."""
    tools: dict[str, Any] = {"store": resources.store, "workers": resources.workers}
    capture = measure(packed, (ask.device,), None, store=resources.store, farm=resources.farm)
    return CellResult(
        request=ask,
        exported=lowered.quantized.exported,
        quantized=lowered.quantized,
        lowered=lowered,
        bundle=packed,
        capture=capture,
        comparison=compare(lowered, capture, comparison_options(ask), **tools),
        stage="compare",
    )
