"""ExecuTorch's own portable kernels, no delegate: the second control group."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from executorch.exir import EdgeCompileConfig
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from conf.schema import SchemeConfig
from tasks.errors import RequestError
from tasks.toolchain.backends.protocol import Delegation


class Portable:
    has_debug_program = False

    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:  # noqa: ARG002
        raise RequestError(f"scheme={scheme.name}: the portable backend has no quantizer; use scheme=fp32")

    def before_edge(self, program: ExportedProgram) -> tuple[ExportedProgram, Sequence[Any] | None]:
        return program, None

    def compile_config(self) -> EdgeCompileConfig:
        return EdgeCompileConfig()

    def partitioners(self, *, debug: bool, noted: Delegation) -> list[Any]:  # noqa: ARG002
        return []

    def profiling(self, level: int) -> None:
        """None: there is no delegate to look into."""

    def session(self, *, debug: bool, noted: Delegation) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()
