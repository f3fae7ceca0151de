"""The toy vendor's backend: it compiles to the portable kernels, for SoCs of its own. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qnnsweep.conf.backends import Rule
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.numerics.clock import Clock
from qnnsweep.tasks.records import ProgramCheck
from qnnsweep.tasks.toolchain.backends.backend import Backend, DoctorCheck
from qnnsweep.tasks.toolchain.backends.checks import AuditedProgram

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.backends.compiler import Compiler

KERNELS = {1: 3, 2: 300}
"""The most kernels that a program for an architecture can have."""


class Toy(Backend):
    needs_soc = True
    socs = ("toy_small", "toy_large")
    rules = (
        Rule(
            computes=frozenset({"float32", "8a8w"}),
            others=True,
            reason="the toy computes fp32 and 8a8w only",
            evidence="its data sheet",
        ),
        Rule(
            computes=frozenset({"8a8w"}),
            arch_below=2,
            reason="the small toy has no integer units",
            evidence="its data sheet",
        ),
    )
    clock = Clock(unit="toy_ticks", ticks=1.0)
    version = "toy compiler 1.0"

    def compiler(self, scheme: SchemeConfig, soc: SocConfig | None) -> Compiler:
        from toy_backend.compiler import ToyCompiler

        return ToyCompiler(scheme, soc)

    def checks(self, program: AuditedProgram) -> Iterator[ProgramCheck]:
        assert program.soc is not None
        most, kernels = KERNELS[program.soc.arch], program.facts.kernel_calls
        yield program.check("toy kernels", f"at most {most}", str(kernels), agrees=kernels <= most)

    def doctor(self) -> Iterator[DoctorCheck]:
        yield DoctorCheck(what="toy", found=f"{self.version}", ok="torch" not in sys.modules)
