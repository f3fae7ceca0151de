"""XNNPACK on the CPU: the control group that tells a QNN problem from an ExecuTorch problem."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
from executorch.exir import EdgeCompileConfig
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from conf.schema import SchemeConfig
from tasks.toolchain.backends.protocol import Delegation


class Xnnpack:
    has_debug_program = False

    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:  # noqa: ARG002
        """8-bit activations and weights, XNNPACK's only static scheme."""
        return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=scheme.per_channel_conv))

    def before_edge(self, program: ExportedProgram) -> tuple[ExportedProgram, Sequence[Any] | None]:
        return program, None

    def compile_config(self) -> EdgeCompileConfig:
        return get_xnnpack_edge_compile_config()

    def partitioners(self, *, debug: bool, noted: Delegation) -> list[Any]:  # noqa: ARG002
        return [XnnpackPartitioner()]

    def profiling(self, level: int) -> None:
        """None: its delegate logs its operators in every program."""

    def session(self, *, debug: bool, noted: Delegation) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()
