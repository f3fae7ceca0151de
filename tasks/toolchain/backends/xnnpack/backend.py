"""XNNPACK on the CPU: the control group that distinguishes problems of QNN from problems of ExecuTorch."""

from typing import TYPE_CHECKING

from qnnsweep.conf.backends import Rule
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.toolchain.backends.backend import Backend

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.backends.xnnpack.compiler import XnnpackCompiler


class Xnnpack(Backend):
    delegate = "XnnpackBackend"
    rules = (
        Rule(
            computes=frozenset({"float32", "8a8w"}),
            others=True,
            reason="the xnnpack backend accepts fp32 and 8a8w only",
            evidence="ExecuTorch 1.5.1 XNNPACKQuantizer: 8-bit activations and weights",
        ),
    )

    def compiler(self, scheme: SchemeConfig, soc: SocConfig | None) -> "XnnpackCompiler":
        from qnnsweep.tasks.toolchain.backends.xnnpack.compiler import XnnpackCompiler

        return XnnpackCompiler(scheme, soc)
