"""QNN's compiler can repeat a pass without end. A cell then lacks the debug and the profile program, and no more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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

BLOCKS = "scheme.overrides=[{module: '2', quant_dtype: 16a4w_block, block_size: [1, 16]}]"


@pytest.mark.slow
def test_a_program_whose_debug_program_has_no_end_is_compiled_without(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "LEAST_WITH_DEBUG_S", 1.0)  # ten times the export and the quantization are enough
    ask = load(["scheme=16a8w", "soc=SM8650", BLOCKS]).cells[0].request
    quantized = quantized_model(ask, resources, "endless_model", 4, name="endless")
    lowered = lower(quantized, ask.soc, lowering_options(ask), store=resources.store, workers=resources.workers)
    (method,) = lowered.methods
    assert method.debug_unavailable is not None
    begin, limit, end = re.split(r"(\d[\d.]*)", method.debug_unavailable)
    assert begin == "the compilation with the debug or profile program had no end after "
    assert float(limit) == pytest.approx(10 * sum(call.seconds for call in quantized.made), rel=1e-4)
    assert end == " s of processor time"
    assert method.facts is not None


def test_a_further_compilation_has_ten_times_the_seconds_of_the_program_and_two_minutes_at_least() -> None:
    assert [most_further_s(seconds) for seconds in (0.0, 12.0, 80.0)] == [120.0, 120.0, 800.0]
    assert [most_further_s(seconds, 600.0) for seconds in (0.0, 12.0, 80.0)] == [600.0, 600.0, 800.0]
