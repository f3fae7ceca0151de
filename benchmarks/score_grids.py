"""Two changes of the grid of attention scores plus mask in a converted graph. Runs in workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

from pairs import with_graph
from torch.fx import GraphModule, Node

from qnnsweep.tasks.records import QuantizedModel
from qnnsweep.tasks.storage.store import Store

LOWEST_MASK = -128.0


def variant(quantized: QuantizedModel, name: str, store: Store) -> QuantizedModel:
    return with_graph(quantized, VARIANTS[name], store)


def _whole_multipliers(module: GraphModule) -> GraphModule:
    """Enlarge the step of every sum until the step of the scores is a whole number of 2⁻¹⁵ steps of the sum."""
    changed = copy.deepcopy(module)
    for total, scores, _ in _sums(changed):
        step, point = total.args[1:3]
        whole = int(scores.args[1] / step * 2**15)
        _regrid(total, scores.args[1] * 2**15 / whole, point)
    changed.recompile()
    return changed


def _narrow_mask(module: GraphModule) -> GraphModule:
    """Give the mask the lowest value `LOWEST_MASK`, and every sum a grid for the range of its scores times 1.3."""
    changed = copy.deepcopy(module)
    for total, scores, mask in _sums(changed):
        _regrid(mask.args[0], -LOWEST_MASK / 65535, 65535)
        # The mask's quantized value 0 represented -65535. With the new step it represents `LOWEST_MASK`.
        masked = mask.args[0].args[0].args[2]
        masked.args = (masked.args[0], *mask.args[1:])
        step, point = scores.args[1:3]
        low, high = 1.3 * min((0 - point) * step, -20.0), (65535 - point) * step
        _regrid(total, (high - low) / 65535, round(-low / (high - low) * 65535))
    changed.recompile()
    return changed


VARIANTS: dict[str, Callable[[GraphModule], GraphModule]] = {
    "whole multipliers": _whole_multipliers,
    "narrow mask": _narrow_mask,
}


def _sums(module: GraphModule) -> Iterator[tuple[Node, Node, Node]]:
    """Yield, per softmax, the quantize node of the sum that it reads, and the dequantize nodes of scores and mask."""
    for node in module.graph.nodes:
        if str(node.target) == "aten.softmax.int":
            total = node.args[0].args[0]
            scores, mask = total.args[0].args
            yield total, scores, mask


def _regrid(quantize: Node, step: float, point: int) -> None:
    for node in (quantize, *quantize.users):
        node.args = (node.args[0], step, point, *node.args[3:])
