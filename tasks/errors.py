"""All errors that qnnsweep raises, sorted by who must act.

QnnsweepError
  RequestError      the configuration asks for something impossible   edit conf/; nothing ran
  ToolchainError    export, quantize or lower failed on the host      never retried
    ProgramDiffers  the compiled program is not the requested one     never measured
  EnvironmentUnusable  the machine lacks something qnnsweep needs     see `qnnsweep doctor`
  MachineFault      a process was killed, or memory was short         never cached; run again
  DeviceError       the channel to a device failed                    retried on another device
    DeadlinePassed    a command or a transfer took too long
    LeaseLost         the lock of the device was not renewed in time  leased again
  RunnerFailed      the device ran the program and the program failed never retried
  EvidenceError     bytes do not match their record                   never used

Code decides by the attributes of an error; its message is for people. Every error can be pickled with its attributes.
"""

import errno
import os
import signal as signals
from enum import Enum
from typing import TYPE_CHECKING

from qnnsweep.conf.errors import QnnsweepError as QnnsweepError
from qnnsweep.conf.errors import RequestError as RequestError

if TYPE_CHECKING:
    from qnnsweep.tasks.records import Command, ProgramCheck


class EnvironmentUnusable(QnnsweepError):
    """The machine lacks something: a library, disk space, a writable folder. The message is `problem; remedy`.

    Attributes: `problem`, `remedy` (what to do; empty if `problem` includes the remedy).
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class MachineFault(QnnsweepError):
    """This machine failed, not the cell: a process was killed from outside or does not answer, or memory was short."""


class ToolchainError(QnnsweepError):
    """A process of the toolchain failed.

    Attributes: `stage`, `cause` (an exception's type, a signal's name, `deadline` or `memory limit`),
    `signal` (the signal that ended the process, or None), `log` (sha256 of the full log in the store, or None).
    """

    def __init__(
        self, message: str, *, stage: str, cause: str, signal: signals.Signals | None = None, log: str | None = None
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause
        self.signal = signal
        self.log = log


class ProgramDiffers(ToolchainError):
    """The compiled program is not the one that was requested, so it is not measured.

    Attributes: `checks` (all checks of the audit, including those that passed).
    """

    def __init__(self, message: str, *, checks: "tuple[ProgramCheck, ...]", log: str | None) -> None:
        super().__init__(message, stage="lower", cause="audit", log=log)
        self.checks = checks


class DeviceProblem(Enum):
    """The kinds of problems of a device or of the channel to it. The value of each member is the remedy."""

    FULL = "free space on the device, or lower device.keep_days"
    UNAUTHORIZED = "unlock the phone and allow this host's key, or give the adb server the key that the phone accepts"
    OFFLINE = "replug the phone, or restart its adbd: the phone is connected and does not answer"
    HUNG = "check whether the device hangs; if it is only slow, raise device.deadline_s"
    HOST_KEY = "compare the host's key with known_hosts"
    LOGIN = "check the user, the key file, the agent or the password's variable"
    HOT = "cool the device, or raise device.below_celsius"
    WRONG_SOC = "correct device.soc"
    RUNNER_MISSING = "install Python and executorch on the device, or correct device.python"
    LOST = "check the device's cable, network and power"


class DeviceError(QnnsweepError):
    """A device, or the channel to it, failed. The program that ran on the device is not at fault.

    Attributes: `problem` (the kind of the problem, or None if only the message describes the problem).
    """

    def __init__(self, message: str, *, problem: DeviceProblem | None = None) -> None:
        super().__init__(message)
        self.problem = problem


class DeadlinePassed(DeviceError):
    """A command on a device, or a transfer, ran past its deadline and was killed.

    Attributes: `output` (the part of the command's output that arrived before the deadline).
    """

    def __init__(self, message: str, *, output: bytes = b"") -> None:
        super().__init__(message, problem=DeviceProblem.HUNG)
        self.output = output


class LeaseLost(DeviceError):
    """The lock of a device ended during a lease, and its commands were stopped. Nothing is wrong with the device."""


class RunnerFailed(QnnsweepError):
    """The device ran the runner, and the runner failed: the program is at fault.

    Attributes: `command` (the command that failed), `log` (sha256 of the command's output), `missing` (the operators
    for which the device's runtime has no kernel).
    """

    def __init__(self, message: str, *, command: "Command", log: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.command = command
        self.log = log
        self.missing = missing


class RuntimesDiffer(QnnsweepError):
    """Two runtimes returned different tensors from the same compiled graph."""


class EvidenceError(QnnsweepError):
    """Bytes from a device or from the store do not match their record."""


class OutputSizeDiffers(EvidenceError):
    """A program has returned an output of another size than the model's."""


_SHORTAGES = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""The codes of the operating system for too little memory, disk space or descriptors."""
_SHORTAGE_TEXTS = (
    *map(os.strerror, _SHORTAGES),
    "can't allocate memory",
    "can't start new thread",
    "std::bad_alloc",
    "Failed to initialize QNN backend",  # no program has been compiled yet: its libraries or their memory are missing
)
"""What the messages of RuntimeError say about shortages. PyTorch has no exception class of its own for them."""
_LAST_WORDS = (
    *_SHORTAGE_TEXTS,
    "MemoryError",
    "failed to map segment from shared object",
    "Resource temporarily unavailable",
)
"""What a program prints about a shortage before it ends itself."""


def shortage_behind(error: BaseException) -> MachineFault | None:
    """Return the fault of this machine if a shortage caused an error, directly or indirectly; otherwise None.

    A shortage is one of memory, disk space, descriptors or threads. Without it, the same work may succeed.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, EnvironmentUnusable | EvidenceError):
            return None  # the machine lacks what it says; damaged bytes can announce more than fits into any memory
        if isinstance(cause, MachineFault):
            return cause
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) in _SHORTAGES or _tells_of_shortage(cause):
            line = next(iter(str(cause).strip().splitlines()), "")
            return MachineFault(f"this machine is short of memory or files; run again: {type(cause).__name__}: {line}")
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def raise_shortage(error: BaseException) -> None:
    """Raise MachineFault if a shortage caused an error, so that the error is not taken for a property of the model."""
    if (fault := shortage_behind(error)) is not None:
        raise fault from error


def shortage_in(printed: str) -> MachineFault | None:
    """Return the fault of this machine if the last lines of a program that failed tell of a shortage."""
    lines = [line.strip() for line in printed.splitlines() if any(text in line for text in _LAST_WORDS)]
    return MachineFault(f"this machine is short of memory or files; run again: {lines[-1]}") if lines else None


def _tells_of_shortage(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _SHORTAGE_TEXTS)
