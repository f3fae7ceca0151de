"""A shortage of the machine is never taken for a property of the model: it ends in the outcome `infrastructure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import (
    EnvironmentUnusable,
    EvidenceError,
    MachineFault,
    RequestError,
    ToolchainError,
    shortage_behind,
)
from qnnsweep.tasks.results.outcome import CellResult, judge

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

import shortages  # isort: skip

pytestmark = pytest.mark.toolchain

ALLOCATIONS = [
    shortages.backward_of_a_run,
    shortages.operator_of_a_run,
    shortages.operator_of_a_replay,
    shortages.operator_in_float32,
    shortages.gradient_of_an_operator,
    shortages.elements_that_indices_select,
    shortages.debug_program,
    shortages.pass_of_executorch,
    shortages.first_failing_operator,
    shortages.mistaken_inputs,
    shortages.own_metric,
    shortages.case_of_the_suite,
    shortages.factory_of_a_model,
    shortages.allocate,
]
OTHERS = {
    shortages.program_of_a_case: "RuntimeError: the shipping program: [enforce fail at alloc_cpu.cpp",
    shortages.refused_program: "CompilationRefused: Failed to generate Qnn context binary.",
    shortages.array_of_numpy: "MemoryError: Unable to allocate 1.00 PiB",
    shortages.thread: "RuntimeError: can't start new thread",
    shortages.file_of_a_model: "OSError: [Errno 24] Too many open files",
    shortages.weights_of_a_folder: "OSError: [Errno 24] Too many open files",
    shortages.configuration_of_a_folder: "OSError: [Errno 24] Too many open files",
    shortages.configuration_of_a_checkpoint: "OSError: [Errno 24] Too many open files",
    shortages.tokeniser_of_a_checkpoint: "OSError: [Errno 24] Too many open files",
    shortages.saved_program: "OSError: [Errno 24] Too many open files",
    shortages.arrays_of_samples: "OSError: [Errno 24] Too many open files",
    shortages.lines_of_samples: "OSError: [Errno 24] Too many open files",
    shortages.picture_of_a_sample: "OSError: [Errno 24] Too many open files",
    shortages.function_of_samples: "OSError: [Errno 24] Too many open files",
    shortages.commit_of_executorch: "OSError: [Errno 24] Too many open files",
}
TEXTS = dict.fromkeys(ALLOCATIONS, "RuntimeError: [enforce fail at alloc_cpu.cpp") | OTHERS


@pytest.mark.parametrize(("call", "text"), TEXTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_call_that_is_short_of_something_is_a_fault_of_the_machine(
    call: Callable[[], object], text: str, resources: Resources, request_8a8w: Request
) -> None:
    with pytest.raises(MachineFault) as short:
        resources.workers.call("compare", call)
    assert str(short.value).startswith(f"this machine is short of memory or files; run again: {text}")
    judgement = judge(CellResult(request=request_8a8w, stage="compare", error=short.value))
    assert (judgement.outcome, judgement.reason) == ("infrastructure", None)


def test_a_verification_that_is_short_of_memory_is_not_one_that_failed(resources: Resources) -> None:
    assert resources.workers.call("compare", shortages.verification).value == (3, 1)


def raised(error: BaseException, cause: BaseException | None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "is_shortage"),
    [
        (raised(RequestError("the factory failed"), MemoryError()), True),
        (raised(RuntimeError("a pass failed"), OSError(12, "Cannot allocate memory")), True),
        (
            RuntimeError("Failed to initialize QNN backend for kHtpBackend. Ensure QNN SDK libraries are available"),
            True,
        ),
        (MachineFault("the worker was killed"), True),
        (raised(EnvironmentUnusable("disk full", remedy="free some space"), OSError(28, "No space left")), False),
        (raised(EvidenceError("the file announces 1 PiB"), MemoryError()), False),
        (ToolchainError("memory limit of 6 GiB", stage="lower", cause="memory limit"), False),
        (RuntimeError("derivative for aten::heaviside is not implemented"), False),
        (OSError(2, "No such file"), False),
    ],
    ids=repr,
)
def test_a_shortage_is_found_behind_any_error_that_does_not_state_it_itself(
    error: BaseException, is_shortage: bool
) -> None:
    assert (shortage_behind(error) is not None) is is_shortage


def test_an_error_that_is_its_own_cause_has_no_shortage_behind_it() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    assert shortage_behind(first) is None
