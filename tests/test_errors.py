"""Errors are pickled between processes, and keep the attributes that code depends on."""

from __future__ import annotations

import copy
import pickle
import signal

import pytest

from qnnsweep.tasks.errors import (
    DeadlinePassed,
    DeviceError,
    DeviceProblem,
    EnvironmentUnusable,
    EvidenceError,
    LeaseLost,
    MachineFault,
    OutputSizeDiffers,
    ProgramDiffers,
    QnnsweepError,
    RequestError,
    RunnerFailed,
    RuntimesDiffer,
    ToolchainError,
)
from qnnsweep.tasks.records import Command

ERRORS = [
    RequestError("no such model", key="model", value="x"),
    EnvironmentUnusable("no QNN libraries", remedy="install them"),
    MachineFault("the worker was killed"),
    ToolchainError("lower failed: SIGSEGV", stage="lower", cause="SIGSEGV", signal=signal.SIGSEGV, log="0" * 64),
    ProgramDiffers("another program", checks=(), log=None),
    DeviceError("refused", problem=DeviceProblem.LOGIN),
    DeadlinePassed("too long", output=b"so far"),
    LeaseLost("the machine slept", problem=None),
    RunnerFailed("aborted", command=Command(argv=("runner",), exit_code=-6, seconds=1.0), log="0" * 64),
    RuntimesDiffer("output a differs"),
    EvidenceError("damaged"),
    OutputSizeDiffers("output 0 has 8 bytes"),
]


def subclasses(kind: type[QnnsweepError]) -> set[type[QnnsweepError]]:
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_every_kind_of_error_is_in_the_list() -> None:
    defined = {kind for kind in subclasses(QnnsweepError) if kind.__module__.endswith(".errors")}
    assert {type(error) for error in ERRORS} == defined - {QnnsweepError}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_that_was_pickled_or_copied_has_its_message_and_its_attributes(error: QnnsweepError) -> None:
    for arrived in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_a_remedy_is_part_of_the_message() -> None:
    assert str(EnvironmentUnusable("no QNN libraries", remedy="install them")) == "no QNN libraries; install them"
    assert str(EnvironmentUnusable("no QNN libraries")) == "no QNN libraries"


def test_no_two_problems_of_devices_are_one() -> None:
    assert all(DeviceProblem.__members__[problem.name] is problem for problem in DeviceProblem)
    assert len(DeviceProblem.__members__) == len(list(DeviceProblem))
