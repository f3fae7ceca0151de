"""QNN's compiler can repeat a pass without end. A cell then lacks the debug and the profile program, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks import lower as lowering
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.toolchain.workers.supervisor import most_further_s
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def test_a_program_whose_debug_program_needs_too_much_processor_time_is_compiled_without(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "LEAST_WITH_DEBUG_S", 0.1)
    ask = load(["scheme=8a8w", "soc=SM8650", "measure.profile_level=2"]).cells[0].request
    quantized = quantized_model(ask, resources, "depth_models", 1, name="depth", arguments={"sliced": True})
    options: dict[str, Any] = {"store": resources.store, "workers": resources.workers}
    lowered = lower(replace(quantized, made=()), ask.soc, lowering_options(ask), **options)
    (method,) = lowered.methods
    reason = "the compilation with the debug or profile program had no end after 0.1 s of processor time"
    assert method.profile is not None
    assert (method.debug_unavailable, method.profile.unavailable) == (reason, reason)
    monkeypatch.undo()
    whole = lower(quantized, ask.soc, lowering_options(ask), **options)
    assert whole.methods[0].debug_unavailable is None


def test_a_compilation_has_ten_times_the_seconds_of_the_program_and_some_minutes_at_least() -> None:
    assert [most_further_s(seconds) for seconds in (0.0, 12.0, 80.0)] == [120.0, 120.0, 800.0]
    assert [most_further_s(seconds, 600.0) for seconds in (0.0, 12.0, 80.0)] == [600.0, 600.0, 800.0]
