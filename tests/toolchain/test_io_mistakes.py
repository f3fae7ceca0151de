"""Does the device take inputs and give outputs as the model does? Programs that really ran, right and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import load as tensors

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.io_check import check_io
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import ExportedModel, IoCheck, LoweredProgram

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

Lowered = Callable[..., LoweredProgram]
Probed = Callable[[LoweredProgram, LoweredProgram], tuple[IoCheck, ...]]


def config(kind: str, order: str = "abc") -> ModelConfig:
    words = kind == "Words"
    data = DataConfig(source="io_mistake_models:samples", arguments={"words": words}, count=2)
    shape, dtype = ([1, 6], "int64") if words else ([1, 2, 4, 6], "float32")
    return ModelConfig(
        name=kind.lower(),
        factory="io_mistake_models:model",
        arguments={"kind": kind},
        inputs=[InputConfig(name=name, shape=shape, dtype=dtype) for name in order],
        calibration=data,
        evaluation=data,
    )


@pytest.fixture(scope="module")
def exported(resources: Resources) -> Callable[..., ExportedModel]:
    tools: Any = {"store": resources.store, "workers": resources.workers}
    return lambda *arguments: export(config(*arguments), "", **tools)


@pytest.fixture(scope="module")
def compiled(resources: Resources, exported: Callable[..., ExportedModel]) -> Lowered:
    """A model's shipping program, on ExecuTorch's portable kernels unless the overrides name another backend."""

    def compile_one(kind: str, order: str = "abc", words: tuple[str, ...] = ()) -> LoweredProgram:
        ask = load(list(words) or ["scheme=fp32", "backend=portable"]).cells[0].request
        tools: Any = {"store": resources.store, "workers": resources.workers}
        soc = ask.soc if words else None
        quantized = quantize(exported(kind, order), ask.scheme, ask.backend.kind, **tools)
        options = replace(lowering_options(ask), operator_samples=1, dump_operators=False)
        return lower(quantized, soc, options, **tools)

    return compile_one


@pytest.fixture(scope="module")
def probed(resources: Resources) -> Probed:
    """What the probe finds when `program` runs in the place of `lowered`'s own."""
    ask = load([]).cells[0].request

    def run(lowered: LoweredProgram, program: LoweredProgram) -> tuple[IoCheck, ...]:
        bundled = bundle(replace(lowered, program=program.program), ask.measure, store=resources.store)
        capture = measure(bundled, (ask.device,), None, store=resources.store, farm=resources.farm)
        (method,), model = lowered.methods, lowered.quantized.exported.methods[0]
        assert method.outputs_designed is not None
        blobs = (
            *(model.outputs_eager, model.mistaken_outputs, capture.methods[0].outputs),
            *(method.outputs_designed, method.outputs_edge),
        )
        return check_io(model, *(tensors(resources.store.read(blob)) for blob in blobs))

    return run


@pytest.fixture(scope="module")
def right(compiled: Lowered) -> LoweredProgram:
    return compiled("One")


ORDERS = ["acb", "bac", "bca", "cab", "cba"]
AXES = [[0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2]]


def test_a_right_program_passes_every_probe(right: LoweredProgram, probed: Probed) -> None:
    checks = probed(right, right)
    assert [(row.side, row.mistake, row.status) for row in checks] == [
        *(("input", f"the program takes its inputs in the order {list(order)}", "passed") for order in ORDERS),
        *(
            ("input", f"the program takes input {name} in the axis order {axes}", "passed")
            for name in "abc"
            for axes in AXES
        ),
        *(("output", f"output output is laid out in the axis order {axes}", "passed") for axes in AXES),
        ("output", "output output is of another type or in other units", "passed"),
    ]
    assert all(row.relative_error is not None and row.relative_error < 1e-12 for row in checks)
    assert all(row.relative_error_mistaken is None or row.relative_error_mistaken > 1e-3 for row in checks[:-1])


@pytest.mark.parametrize("scheme", ["8a8w", "16a8w"])
def test_a_quantized_program_on_the_htp_takes_the_users_order(scheme: str, compiled: Lowered, probed: Probed) -> None:
    lowered = compiled("Two", words=("model=digits_cnn", f"scheme={scheme}", "soc=SM8650"))
    checks = probed(lowered, lowered)
    assert {row.status for row in checks} == {"passed"}
    assert len(checks) == 5 + 3 * 3 + 1 + 2 * (3 + 1)


@pytest.mark.parametrize(
    ("kind", "order", "mistake", "detail"),
    [
        ("TakesAnotherOrder", "cab", "the program takes its inputs in the order ['c', 'a', 'b']", None),
        ("TakesChannelsLast", "abc", "the program takes input b in the axis order [0, 2, 3, 1]", None),
        ("GivesChannelsLast", "abc", "output output is laid out in the axis order [0, 2, 3, 1]", None),
        ("GivesCodes", "abc", "output output is of another type or in other units", "it is in other units"),
        (
            "GivesAnotherType",
            "abc",
            "output output is of another type or in other units",
            "its bytes are int32, in other units",
        ),
    ],
)
def test_a_program_with_a_mistake_is_named_by_it(
    kind: str, order: str, mistake: str, detail: str | None, right: LoweredProgram, compiled: Lowered, probed: Probed
) -> None:
    failures = [row for row in probed(right, compiled(kind, order)) if row.status == "failed"]
    assert [(row.mistake, row.detail) for row in failures] == [(mistake, detail)]


def test_outputs_that_changed_places_are_named(compiled: Lowered, probed: Probed) -> None:
    failures = [row for row in probed(compiled("Two"), compiled("TwoChangedPlaces")) if row.status == "failed"]
    assert [row.mistake for row in failures] == ["the outputs come in the order ['1', '0']"]


def test_inputs_that_the_model_cannot_tell_apart_or_refuses_say_so(
    exported: Callable[..., ExportedModel], resources: Resources
) -> None:
    model = exported("Words")
    eager, mistaken = (
        tensors(resources.store.read(blob))
        for blob in (model.methods[0].outputs_eager, model.methods[0].mistaken_outputs)
    )
    checks = {
        row.mistake: (row.status, row.detail)
        for row in check_io(model.methods[0], eager, mistaken, eager)
        if row.side == "input"
    }
    refused = ("refused", "IndexError: index out of range in self")
    assert checks == {
        f"the program takes its inputs in the order {list(order)}": ("blind", None) if order == "bac" else refused
        for order in ORDERS
    }
