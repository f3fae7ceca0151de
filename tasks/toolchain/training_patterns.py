"""The conversion of torchao without its search for patterns of quantization-aware training.

If a graph has a batch norm, `convert_pt2e` searches 48 patterns of a convolution and a batch norm, and exports each of
them and its replacement first. This takes 15 to 45 s, whatever the size of the model. A graph that is calibrated after
its training has none of these patterns: `prepare_qat_pt2e` alone makes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import qat_utils

_REPLACED = ("_get_aten_graph_module_for_pattern", "replace_pattern_with_filters")
"""The functions of torchao that export a pattern, and that return what was replaced."""
_DIVISIONS = (torch.ops.aten.div.Tensor, torch.ops.aten.div_.Tensor)


@contextmanager
def without_training_patterns(graph: GraphModule) -> Iterator[None]:
    """Leave the search out until the context ends, if no pattern can be in the graph. All else of torchao remains."""
    functions = {name: getattr(qat_utils, name, None) for name in _REPLACED}
    if None in functions.values() or any(map(_may_be_of_training, graph.graph.nodes)):
        yield
        return
    try:
        for name in _REPLACED:
            setattr(qat_utils, name, _nothing)
        yield
    finally:
        for name, function in functions.items():
            setattr(qat_utils, name, function)


def _may_be_of_training(node: Node) -> bool:
    """Return whether a batch norm reads a division by its scale, to which the bias of the convolution may be added."""
    if "batch_norm" not in str(node.target):
        return False
    sources = node.all_input_nodes[:1]
    sources += [source for first in sources for source in first.all_input_nodes]
    return any(source.target in _DIVISIONS for source in sources)


def _nothing(*_: Any, **__: Any) -> list[Any]:
    return []
