"""QNN's compiler can repeat a pass without end. A cell then lacks what could not be compiled, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.toolchain.workers.supervisor import most_further_s
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import WorkersWith

pytestmark = pytest.mark.toolchain

BLOCKS = "scheme.overrides=[{module: '2', quant_dtype: 16a4w_block, block_size: [1, 16]}]"


@pytest.mark.slow
def test_a_program_whose_debug_program_is_not_compiled_in_time_is_compiled_without(
    workers_with: WorkersWith, resources: Resources
) -> None:
    ask = load(["scheme=16a8w", "soc=SM8650", BLOCKS]).cells[0].request
    quantized = quantized_model(ask, resources, "endless_model", 4, name="endless")
    lowered = lower(
        quantized, ask.soc, lowering_options(ask), store=resources.store, workers=workers_with(deadline_s=30)
    )
    (method,) = lowered.methods
    assert method.debug_unavailable == "the compilation with the debug or profile program did not end in time"
    assert method.profile is None
    assert method.facts is not None


def test_a_further_compilation_has_ten_times_the_seconds_of_the_program_and_two_minutes_at_least() -> None:
    assert [most_further_s(seconds) for seconds in (0.0, 12.0, 80.0)] == [120.0, 120.0, 800.0]
