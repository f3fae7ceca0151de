"""Every error qnnsweep raises, sorted by who must act.

QnnsweepError
  RequestError      the configuration asks for something impossible   edit conf/; nothing ran
  ToolchainError    export, quantize or lower failed on the host      never retried
    ProgramDiffers  the compiled program is another than asked for    never measured
  EnvironmentUnusable  the machine lacks something qnnsweep needs     see `qnnsweep doctor`
  DeviceError       the channel to a device failed                    retried on another device
    DeadlinePassed    a command there took too long
  RunnerFailed      the device ran the program and the program failed never retried
  EvidenceError     bytes are not what the record says                never used
"""

from __future__ import annotations

from conf.errors import QnnsweepError as QnnsweepError
from conf.errors import RequestError as RequestError
from tasks.program_facts import ProgramCheck
from tasks.records import Command


class EnvironmentUnusable(QnnsweepError):
    """This machine lacks something: a library, disk space, a writable folder."""


class ToolchainError(QnnsweepError):
    """A toolchain child failed.

    Attributes: `stage`, `cause` (an exception's type, a signal's name, `deadline` or `memory limit`),
    `log` (sha256 of the child's whole log in the store, or None).
    """

    def __init__(self, message: str, *, stage: str, cause: str, log: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause
        self.log = log


class ProgramDiffers(ToolchainError):
    """The compiled program is not the one that was asked for: it is not measured.

    Attributes: `checks`, all that were made, those that were met too.
    """

    def __init__(self, message: str, *, checks: tuple[ProgramCheck, ...], log: str | None) -> None:
        super().__init__(message, stage="lower", cause="audit", log=log)
        self.checks = checks


class DeviceError(QnnsweepError):
    """The channel to a device failed, or the device under a program: not the program's fault."""


class DeadlinePassed(DeviceError):
    """A command on a device, or a transfer, ran past its deadline and was killed.

    Attributes: `said`, what the command had printed until then, as far as it arrived.
    """

    def __init__(self, message: str, *, said: bytes = b"") -> None:
        super().__init__(message)
        self.said = said


class RunnerFailed(QnnsweepError):
    """The device ran the runner and the runner failed: the program's fault.

    Attributes: `command` that ended so, `log` (sha256 of what it printed).
    """

    def __init__(self, message: str, *, command: Command, log: str) -> None:
        super().__init__(message)
        self.command = command
        self.log = log


class EvidenceError(QnnsweepError):
    """Bytes that came back, or came out of the store, are not what their record says."""
