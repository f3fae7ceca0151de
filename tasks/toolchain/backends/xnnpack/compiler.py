"""XNNPACK's quantizer and partitioner. XNNPACK's delegate logs its operators in every program."""

from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
from executorch.exir import EdgeCompileConfig
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.toolchain.backends.compiler import Compiler, DelegationLog


class XnnpackCompiler(Compiler):
    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:
        """Return the quantizer of XNNPACK's only static scheme: 8-bit activations and weights."""
        return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=scheme.per_channel_conv))

    def compile_config(self) -> EdgeCompileConfig:
        return get_xnnpack_edge_compile_config()

    def partitioners(self, *, debug: bool, log: DelegationLog) -> list[Any]:
        return [XnnpackPartitioner()]
