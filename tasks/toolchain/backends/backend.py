"""The base class of backends: one vendor's compiler, and the facts about it that other modules need.

A backend of another vendor is a class that extends `Backend`. Its name is in the backend's YAML
(`kind: package.module:Class`). No other file changes. The module of the class imports neither torch nor ExecuTorch,
because processes without these packages read the facts of the class.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qnnsweep.conf.backends import OperatorRule, Rule
from qnnsweep.conf.devices import RunnerKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.numerics.clock import MICROSECONDS, Clock
from qnnsweep.tasks.records import DelegateFacts, ProgramCheck
from qnnsweep.tasks.toolchain.backends.checks import AuditedProgram
from qnnsweep.tasks.toolchain.backends.delegate import CompiledDelegate

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.backends.compiler import Compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorCheck:
    """One line of `qnnsweep doctor`."""

    what: str
    found: str
    ok: bool
    needed: bool = True
    """Whether a sweep is impossible if the check fails."""
    remedy: str = ""
    """What to do if the check fails."""


class Backend(ABC):
    """One vendor's backend. It is created without arguments, once per process that needs it.

    `needs_soc`, `socs`, `runners`, `simulating_runners`, `prepared_toolchains`, `overrides`, `rules` and
    `operator_rules` are for planning and for messages: see `qnnsweep.conf.backends.PlannedBackend`.
    """

    needs_soc: bool = False
    socs: Collection[str] | None = None
    runners: Collection[RunnerKind] = (RunnerKind.python,)
    simulating_runners: Collection[RunnerKind] = ()
    prepared_toolchains: bool = False
    overrides: bool = False
    rules: Sequence[Rule] = ()
    operator_rules: Sequence[OperatorRule] = ()
    delegate: str | None = None
    """The name of the backend's delegate in a program (such as `QnnBackend`); None if the backend has no delegate."""
    named_in_labels: bool = True
    """Whether the labels of task runs contain the backend's name. Otherwise they contain only the SoC's name."""
    logs_parts: bool = False
    """Whether a debug program can log a part of the operators: the compiler does as `DelegationLog.logged` says."""
    clock: Clock = MICROSECONDS
    """The clock by which the backend's runtime times a program and its kernels."""
    version: str = ""
    """The version of the vendor's compiler, for cache keys. Empty if the record `Toolchain` contains the version."""

    @abstractmethod
    def compiler(self, scheme: SchemeConfig, soc: SocConfig | None) -> "Compiler":
        """Return the compiler for a scheme and an SoC. Runs in a worker. The compiler's module may import torch.

        If the backend needs an SoC but `soc` is None, the compiler only quantizes and transforms. These steps are the
        same for every SoC.
        """

    def read_delegate(self, delegate: CompiledDelegate, calls: int) -> DelegateFacts:
        """Return the facts of one of the backend's delegates in a finished program. Runs in a worker.

        `calls`: how many instructions call the delegate.
        """
        return DelegateFacts(backend=delegate.id, size=len(delegate.processed), calls=calls)

    def checks(self, program: AuditedProgram) -> Iterator[ProgramCheck]:
        """Yield the backend's own checks of a finished program against the request, for the table `audit`."""
        yield from ()

    def delegate_event(self, identifier: str) -> tuple[str | None, str] | None:
        """Return the node and the unit of a count that the delegate itself logs. `identifier`: the name of the event.

        The node is None for a total or a counter. Returns None instead of the pair if `identifier` contains no unit.
        """
        return None

    def doctor(self) -> Iterator[DoctorCheck]:
        """Yield checks of what the backend needs on this machine."""
        yield from ()
