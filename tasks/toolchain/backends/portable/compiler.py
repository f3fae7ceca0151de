"""The compiler class of the portable backend. It adds no steps: the edge program is emitted as it is."""

from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.toolchain.backends.compiler import Compiler


class PortableCompiler(Compiler):
    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:
        raise RequestError("the portable backend has no quantizer; use scheme=fp32", key="scheme", value=scheme.name)
