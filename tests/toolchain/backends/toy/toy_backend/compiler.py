"""The toy vendor's compiler, imported in workers alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.toolchain.backends.compiler import Compiler, DelegationLog


class ToyCompiler(Compiler):
    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:
        return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=scheme.per_channel_conv))

    @contextlib.contextmanager
    def session(self, *, debug: bool, log: DelegationLog) -> Iterator[None]:
        assert self._soc is not None, "a toy program is compiled for one SoC"
        print(f"the toy compiler compiles for {self._soc.name}")
        yield
