"""The facts of programs that differ in backend and in where the delegates' bytes lie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import DelegateFacts, LoweredProgram, ProgramTensor

import executorch_oracle  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def test_a_delegate_of_another_backend_has_no_qnn_facts(lowered: LoweredProgram, resources: Resources) -> None:
    (cell,) = load(["model=digits_cnn", "scheme=fp32", "backend=xnnpack"]).cells
    ask, tools = cell.request, {"store": resources.store, "workers": resources.workers}
    quantized = quantize(lowered.quantized.exported, ask.scheme, ask.backend.kind, **tools)
    options = replace(lowering_options(ask), operator_samples=1, dump_operators=False)
    facts = lower(quantized, None, options, **tools).methods[0].facts
    assert facts.inputs == (ProgramTensor(shape=(1, 1, 8, 8), dtype="float32", dim_order=(0, 1, 2, 3)),)
    assert facts.outputs == (ProgramTensor(shape=(1, 10), dtype="float32", dim_order=(0, 1)),)
    (delegate,) = facts.delegates
    assert delegate.size > 0
    assert delegate == DelegateFacts(backend="XnnpackBackend", size=delegate.size, calls=1)


@pytest.mark.parametrize("segments", [False, True])
def test_the_delegates_bytes_are_found_inside_the_flatbuffer_and_behind_it(
    segments: bool, lowered: LoweredProgram, resources: Resources
) -> None:
    data = resources.store.read(lowered.program)
    moved = resources.workers.call("lower", executorch_oracle.with_delegates_in, data, segments).value
    facts = resources.workers.call(
        "lower", executorch_oracle.program_facts, resources.store.put_bytes(moved), "qnn", resources.store
    ).value
    assert facts == lowered.methods[0].facts
