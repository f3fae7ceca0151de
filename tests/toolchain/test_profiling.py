"""The profile program: the shipping program's own machine code, with the delegate's log of operators switched on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import MeasureConfig, Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.comparison.profile import profiled_events
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.modules import module_times
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import LoweredProgram, ProfiledEvent
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def profiling(request_8a8w: Request, resources: Resources, lowered: LoweredProgram) -> LoweredProgram:
    """The model of `lowered`, compiled with a profile program of level 3 in place of the debug program."""
    ask = request_8a8w
    tools = {"store": resources.store, "workers": resources.workers}
    options = replace(lowering_options(ask), dump_operators=False, profile_level=3)
    return lower(lowered.quantized, ask.soc, options, **tools)


@pytest.fixture(scope="module")
def events(request_8a8w: Request, resources: Resources, profiling: LoweredProgram) -> tuple[ProfiledEvent, ...]:
    """What its shipping and its profile program logged."""
    bundled = bundle(profiling, MeasureConfig(iterations=2, warm_up=1, profile_level=3), store=resources.store)
    assert [launch.name for launch in bundled.launches] == ["shipping", "profile"]
    capture = measure(bundled, (request_8a8w.device,), None, store=resources.store, farm=resources.farm)
    return profiled_events(profiling.methods[0], capture.methods[0], backend_of("qnn"), resources.store)


def test_the_profile_program_is_the_shipping_program_but_for_a_switch(
    resources: Resources, profiling: LoweredProgram
) -> None:
    assert profiling.methods[0].profile is not None
    assert profiling.methods[0].profile.program is not None
    shipping, logging = (
        resources.store.read(profiling.program),
        resources.store.read(profiling.methods[0].profile.program),
    )
    assert len(shipping) == len(logging)
    # Its options, and a stamp that two compilations of one program differ in as well.
    assert 0 < sum(a != b for a, b in zip(shipping, logging, strict=True)) < len(shipping) / 100


def test_every_operator_that_the_delegate_logs_is_a_node_that_the_lowering_announced(
    profiling: LoweredProgram, events: tuple[ProfiledEvent, ...]
) -> None:
    assert profiling.methods[0].profile is not None
    known = {node.name for node in profiling.methods[0].profile.nodes if node.subgraph == 0}
    logged = [event for event in events if event.kind == "operator"]
    assert {event.node for event in logged} - known == {"Input", "Output"}
    named = {operator.name: operator.subgraph for event in logged for operator in event.operators}
    assert set(named.values()) == {0}
    assert {"aten_convolution_default", "aten_relu_default_1", "aten_linear_default"} <= set(named)
    assert {(event.program, event.backend, event.same_outputs, len(event.raw)) for event in logged} == {
        ("profile", "QnnBackend", True, 16)
    }


def test_the_operators_cycles_are_all_of_the_accelerator_s(events: tuple[ProfiledEvent, ...]) -> None:
    (total,) = (event.raw for event in events if event.name.startswith("Accelerator (execute) time (cycles)"))
    operators = [event.raw for event in events if event.kind == "operator"]
    assert tuple(map(sum, zip(*operators, strict=True))) == total
    (root, *_) = (row for row in module_times(events) if row.unit == "cycles")
    assert root.spread is not None
    assert root.spread.mean == pytest.approx(sum(total) / len(total))


def test_an_operator_without_cycles_has_nothing_left_in_the_compiler_s_schematic(
    resources: Resources, profiling: LoweredProgram, events: tuple[ProfiledEvent, ...]
) -> None:
    assert profiling.methods[0].profile is not None
    (schematic,) = (resources.store.read(blob).decode() for blob in profiling.methods[0].profile.schematics)
    optimized = schematic.partition(":::BEGIN:graph_after_optimization:::")[2].partition(":::END:")[0]
    # The lower half of an operation's id is the id that its cycles are booked on.
    operations = re.findall(r"0x[0-9a-f]{8}([0-9a-f]{8}): \{\s*'operation':'q::", optimized)
    booked = {int(number, 16) for number in operations}
    logged = {int(event.name.partition("OpId_")[2].split()[0]): event for event in events if event.kind == "operator"}
    assert {number for number, event in logged.items() if any(event.raw)} <= booked
    fused = {number: event for number, event in logged.items() if not any(event.raw)}
    assert fused
    assert set(fused).isdisjoint(booked)
    assert {event.node: event.counted_in for event in fused.values()} == {
        "aten_convolution_default": ("aten_relu_default",),
        "aten_convolution_default_1": ("aten_relu_default_1",),
        "quantized_decomposed_dequantize_per_tensor_default": ("output",),
    }


def test_nothing_is_left_where_the_user_stands(profiling: LoweredProgram) -> None:
    assert profiling.methods[0].profile is not None
    assert not list(Path.cwd().glob("*_schematic.bin"))


def test_the_shipping_program_logs_nothing_from_inside_its_delegate(
    request_8a8w: Request, resources: Resources, profiling: LoweredProgram
) -> None:
    bundled = bundle(profiling, MeasureConfig(), store=resources.store)
    capture = measure(bundled, (request_8a8w.device,), None, store=resources.store, farm=resources.farm)
    (files,) = capture.methods
    assert {event.delegate_identifier for event in read_etdump(resources.store.read(files.etdump)).events} == {None}
    assert files.etdump_profile is not None
    assert files.outputs_profile == files.outputs


@pytest.mark.parametrize("backend", ["xnnpack", "portable"])
def test_a_backend_without_such_a_log_says_so_and_still_gives_the_runtime_s(
    backend: str, resources: Resources, lowered: LoweredProgram
) -> None:
    ask = load(["model=digits_cnn", "scheme=fp32", f"backend={backend}"]).cells[0].request
    tools = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(lowered.quantized.exported, ask.scheme, ask.backend.kind, **tools)
    options = replace(lowering_options(ask), operator_samples=1, dump_operators=False, profile_level=2)
    program = lower(quantized, None, options, **tools)
    assert program.methods[0].profile is not None
    assert program.methods[0].profile.unavailable == "this backend has no log of times that can be switched on"
    capture = measure(
        bundle(program, MeasureConfig(), store=resources.store), (ask.device,), None, store=resources.store,
        farm=resources.farm,
    )  # fmt: skip
    profile = profiled_events(program.methods[0], capture.methods[0], backend_of(ask.backend.kind), resources.store)
    assert {event.program for event in profile} == {"shipping"}
    timed = [event for event in profile if event.kind in ("kernel", "delegate_call")]
    assert {event.unit for event in timed} == {"us"}
    # Every operator of the graph that is not folded or a tuple's element was in some instruction.
    named = {operator.name for event in timed for operator in event.operators}
    assert {operator.name for operator in program.methods[0].operators if not operator.constant} - named <= {
        "aten_view_copy_default"
    }
