"""The trial of a changed scheme for models with states: their steps run one after the other on the host."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import SchemeOverride
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.records import LoweredProgram
from qnnsweep.tasks.repair.prediction import LOWEST, noise_at
from qnnsweep.tasks.toolchain import entrypoints
from tests.toolchain.state_cells import LEAKY, MICRO, lowered_of, measured, request_of

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def tried(
    resources: Resources, lowered: LoweredProgram, ask: Request, *overrides: SchemeOverride
) -> tuple[list[float], str | None]:
    """Try overrides of the scheme; everything is compiled, whatever the noise is."""
    assert lowered.model.driven is not None
    changed, plan = replace(ask.scheme, overrides=[*overrides]), lowered.model.driven.plan
    given = lowered.methods, plan, ask.scheme, changed, "qnn", ask.soc, LOWEST, -math.inf, resources.store
    return resources.workers.call("cure", entrypoints.try_scheme, *given).value


@pytest.fixture(scope="module")
def micro(resources: Resources) -> tuple[Request, LoweredProgram]:
    ask = request_of(MICRO, "16a8w")
    return ask, lowered_of(ask, resources)


def test_without_a_change_a_step_has_the_noise_of_the_device_with_the_states_that_the_device_wrote(
    resources: Resources,
) -> None:
    """In a few steps, the device rounds a value to the other of the two nearest codes."""
    ask = request_of(LEAKY, "8a8w")
    lowered = lowered_of(ask, resources)
    cell = measured(ask, lowered, bundle(lowered, ask.measure, store=resources.store), resources)
    assert cell.comparison is not None
    on_device, of_single_steps = (list(noise_at(rung, cell.comparison).values()) for rung in ("device", "designed"))
    noise, refused = tried(resources, lowered, ask)
    assert (len(noise), refused) == (20, None)
    equal = sum(a == b for a, b in zip(noise, on_device, strict=True))
    assert equal >= 15 > 2 * sum(a == b for a, b in zip(noise, of_single_steps, strict=True))


def test_a_change_of_a_value_that_becomes_a_state_in_one_method_alone_is_refused(
    resources: Resources, micro: tuple[Request, LoweredProgram]
) -> None:
    ask, lowered = micro
    writer = lowered.methods[1].operators[lowered.methods[1].output_operators[1] or 0]
    override = SchemeOverride(method="decode", node=writer.source_nodes[-1], range=[-9.0, 9.0])
    assert tried(resources, lowered, ask, override) == (
        [],
        "the state k_0 would be written on one grid and read on another",
    )


def test_a_change_of_one_method_is_compiled_in_this_method(
    resources: Resources, micro: tuple[Request, LoweredProgram]
) -> None:
    ask, lowered = micro
    override = SchemeOverride(method="decode", operator="linear", quant_dtype="16a16w")
    noise, refused = tried(resources, lowered, ask, override)
    assert (len(noise), refused) == (6, None)
    old = replace(ask, soc=load(["model=digits_cnn", "scheme=8a8w", "soc=SM8450"]).cells[0].request.soc)
    again, refused = tried(resources, lowered, old, override)
    assert again == noise
    assert refused is not None
    assert "73" in refused, refused
