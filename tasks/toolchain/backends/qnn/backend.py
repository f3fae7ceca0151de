"""Qualcomm's HTP through ExecuTorch's QNN delegate: the whole backend except its compiler.

Every command that plans cells imports this module. A method therefore imports what only this method needs.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qnnsweep.conf.devices import RunnerKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import DelegateFacts, ProgramCheck
from qnnsweep.tasks.toolchain.backends.backend import Backend, DoctorCheck
from qnnsweep.tasks.toolchain.backends.checks import AuditedProgram
from qnnsweep.tasks.toolchain.backends.delegate import CompiledDelegate
from qnnsweep.tasks.toolchain.backends.qnn.limits import CHIPSETS, OPERATOR_RULES, RULES

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.backends.qnn.compiler import QnnCompiler

# The names of QNN's counts: `aten_relu_default:OpId_29 (cycles)`, `Output OpId_3 (cycles)`, `QNN (execute) time (us)`.
_COUNT = re.compile(r"(?P<node>.+?)(?P<operator>[: ]OpId_\d+)? \((?P<unit>\w+)\)")


class Qnn(Backend):
    needs_soc = True
    socs = CHIPSETS
    runners = (RunnerKind.python, RunnerKind.native, RunnerKind.onnxruntime, RunnerKind.aihub)
    simulating_runners = (RunnerKind.python, RunnerKind.onnxruntime)
    prepared_toolchains = True
    overrides = True
    rules = RULES
    operator_rules = OPERATOR_RULES
    delegate = "QnnBackend"
    logs_parts = True
    named_in_labels = False

    def compiler(self, scheme: SchemeConfig, soc: SocConfig | None) -> "QnnCompiler":
        from qnnsweep.tasks.toolchain.backends.qnn.compiler import QnnCompiler

        return QnnCompiler(scheme, soc)

    def read_delegate(self, delegate: CompiledDelegate, calls: int) -> DelegateFacts:
        """Return the facts in the delegate's options, and those in its context binary or why it is unreadable."""
        from qnnsweep.tasks.toolchain.backends.qnn.context import read_context
        from qnnsweep.tasks.toolchain.backends.qnn.options import read_options
        from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER

        facts = read_options(delegate, calls)
        try:
            library = Path(os.environ["QNN_SDK_ROOT"], LIBRARY_FOLDER, "libQnnSystem.so")
            context = read_context(delegate.processed, library)
        except EvidenceError as error:
            return replace(facts, unread=str(error))
        return replace(facts, context=context)

    def checks(self, program: AuditedProgram) -> Iterator[ProgramCheck]:
        from qnnsweep.tasks.toolchain.backends.qnn.audit import qnn_checks

        return qnn_checks(program)

    def delegate_event(self, identifier: str) -> tuple[str | None, str] | None:
        count = _COUNT.fullmatch(identifier)
        if count is None:
            return None
        return count["node"] if count["operator"] else None, count["unit"]

    def doctor(self) -> Iterator[DoctorCheck]:
        from qnnsweep.tasks.toolchain.backends.qnn.doctor import qnn_doctor

        return qnn_doctor()
