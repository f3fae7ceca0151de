"""A mutated context binary that crashes QNN's reader fails one call with one error."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.records import LoweredProgram

import faulty_calls  # isort: skip
import mutated_contexts  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import WorkersWith

pytestmark = pytest.mark.toolchain


def test_a_context_that_crashes_its_reader_is_one_error_and_the_next_call_works(
    lowered: LoweredProgram, resources: Resources, workers_with: WorkersWith
) -> None:
    workers, program = workers_with(), resources.store.read(lowered.program)
    with pytest.raises(ToolchainError, match=r"^lower failed: SIG") as raised:
        workers.call("lower", mutated_contexts.read_mutated_contexts, program, 20_000)
    assert raised.value.signal in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
    assert workers.call("lower", faulty_calls.give, "fine").value == "fine"
