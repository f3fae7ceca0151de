"""ExecuTorch's own portable kernels, without a delegate: the second control group."""

from typing import TYPE_CHECKING

from qnnsweep.conf.backends import Rule
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.toolchain.backends.backend import Backend

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.backends.portable.compiler import PortableCompiler


class Portable(Backend):
    rules = (
        Rule(
            computes=frozenset({"float32"}),
            others=True,
            reason="the portable backend accepts fp32 only",
            evidence="qnnsweep's choice: this backend is for comparisons with the simplest possible fp32 program",
        ),
    )

    def compiler(self, scheme: SchemeConfig, soc: SocConfig | None) -> "PortableCompiler":
        from qnnsweep.tasks.toolchain.backends.portable.compiler import PortableCompiler

        return PortableCompiler(scheme, soc)
