"""A device's tensors against the simulator's: every element that differs is counted, and the first tensor is named."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from qnnsweep.flows.cells.resources import Resources
from qnnsweep.tasks.comparison.simulator import SimulatorDifference, against_simulator
from qnnsweep.tasks.records import Capture, CapturedMethod, LoweredProgram
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor

pytestmark = pytest.mark.toolchain


def compared(
    device: CapturedMethod, lowered: LoweredProgram, capture: Capture, tools: Resources
) -> SimulatorDifference:
    return against_simulator(lowered.methods[0], device, capture.methods[0], tools.store)


def with_buffer(method: CapturedMethod, data: bytes, tools: Resources) -> CapturedMethod:
    (files,) = method.debug
    return replace(method, debug=(replace(files, buffer=tools.store.put_bytes(data)),))


def test_equal_captures_have_no_difference(lowered: LoweredProgram, capture: Capture, resources: Resources) -> None:
    found = compared(capture.methods[0], lowered, capture, resources)
    assert found == SimulatorDifference(equal=1.0, steps=0.0, why=None)


def test_every_changed_code_of_every_logged_tensor_is_counted_and_its_operator_is_named(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    (method,), chance = capture.methods, random.Random(1)
    (files,) = method.debug
    dump, before = read_etdump(resources.store.read(files.etdump)), resources.store.read(files.buffer)
    logged = [event for event in dump.tensors if event.delegate_identifier is not None]
    assert len(logged) > 10
    names = {operator.name for operator in lowered.methods[0].operators}
    elements = None
    for event in logged:
        data = bytearray(before)
        at = event.offset + chance.randrange(tensor(event, np.frombuffer(before, np.uint8)).nbytes)
        data[at] ^= 1
        found = compared(with_buffer(method, bytes(data), resources), lowered, capture, resources)
        one = 1 - found.equal
        elements = elements or round(1 / one)
        assert one == pytest.approx(1 / elements)
        assert found.why is not None
        assert found.why.startswith("begins at ")
        assert ": 1 of " in found.why
        assert "later ones differ" not in found.why
        assert any(f"({name})" in found.why for name in names) or str(event.delegate_identifier) in found.why


def test_an_output_that_is_changed_on_its_way_is_no_operators_fault(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    (method,) = capture.methods
    tensors = load(resources.store.read(method.outputs))
    tensors["0/0"] = tensors["0/0"] + np.float32(0.5)
    changed = replace(method, outputs=resources.store.put_bytes(save(tensors)))
    found = compared(changed, lowered, capture, resources)
    size, name = tensors["0/0"].size, lowered.methods[0].exported.outputs[0].name
    assert found.why is not None
    assert found.why.startswith(f"output {name}: {size} of {size} elements differ, by up to 0.5, although all ")
    assert found.why.endswith("logged tensors are equal")


def test_a_debug_program_that_only_the_simulator_ran_is_a_difference(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    (method,) = capture.methods
    shipping, debug = method.results[:2]
    failed = replace(debug, failure="the debug program ended with SIGSEGV on board")
    found = compared(replace(method, debug=(), results=(shipping, failed)), lowered, capture, resources)
    assert (found.equal, found.steps) == (None, None)
    assert found.why == "the debug program, which the simulator ran: the debug program ended with SIGSEGV on board"
