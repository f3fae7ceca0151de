"""ExecuTorch's pass that writes linear layers as convolutions, for those layers only whose overrides ask for it."""

from collections.abc import Callable, Sequence
from typing import Any

from executorch.backends.qualcomm._passes import ConvertLinearToConv2d
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult
from torch.fx import GraphModule, Node

from qnnsweep.conf.schemes import SchemeOverride
from qnnsweep.tasks.toolchain.overridden import overrides_of

_LINEAR = ops.edge.aten.linear.default  # type: ignore[attr-defined]


def only_selected(entry: Callable[..., Any], overrides: Sequence[SchemeOverride]) -> Callable[..., Any]:
    """Return a pass unchanged, unless it writes linear layers as convolutions."""
    return _OfSelected(entry, overrides) if isinstance(entry, ConvertLinearToConv2d) else entry


class _OfSelected(ExportPass):
    """The pass of ExecuTorch, which converts every linear layer that it finds. The others are hidden from it."""

    def __init__(self, converter: ConvertLinearToConv2d, overrides: Sequence[SchemeOverride]) -> None:
        super().__init__()
        self._converter = converter
        self._overrides = overrides

    def call(self, graph_module: GraphModule) -> PassResult:
        nodes = [node for node in graph_module.graph.nodes if node.target is _LINEAR and not self._is_selected(node)]
        for node in nodes:
            node.target = _hidden
        try:
            return self._converter.call(graph_module)
        finally:
            for node in nodes:
                node.target = _LINEAR
            graph_module.recompile()

    def _is_selected(self, node: Node) -> bool:
        return any(self._overrides[index].as_conv2d for index in overrides_of(node))


def _hidden(*_: Any) -> None:
    """Stand for a linear layer that is not converted."""
