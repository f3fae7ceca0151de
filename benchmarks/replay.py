"""A comparison of the device's values at every fused pair with two interpretations of the graph, in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pairs import DEQUANTIZE, QUANTIZE, fused_names
from torch.fx import GraphModule, Interpreter, Node

from qnnsweep.tasks.numerics.dequantize import dequantize, undo_layout
from qnnsweep.tasks.records import CapturedMethod, LoweredMethod
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import read_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """One fused pair: the output of its clamp, as logged by the device for the first sample.

    The host computes the convolution and the clamp from the device's input, with rounding at the pair (`apart`) or
    without it (`fused`). `equal_apart` and `equal_fused` are the shares of elements that equal the device's elements.
    """

    module_path: str
    codes_device: int
    codes_converted: int
    equal_fused: float
    equal_apart: float
    off_by_more_than_one: int
    """The number of elements that differ by more than one quantized value from the fused replay."""
    of_lowest_bias: int
    """The number of these elements in channels whose quantized bias is the int32 minimum."""


def replay(lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> list[Replayed]:
    make_deterministic()
    exported = lowered.quantized.exported
    module = load_program(store, lowered.quantized.program).module()
    names = [spec.name for spec in exported.inputs]
    host = _Values(module)
    with torch.no_grad():
        sample = capture.debug[0].samples[0]
        host.run(*read_samples(store, exported.evaluation, names, sample + 1)[sample])
        device = _captured(lowered, capture, store)
        fused = fused_names(module)
        return [_replayed(node, host.values, device) for node in module.graph.nodes if node.name in fused]


class _Values(Interpreter):
    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def _replayed(
    quantize: Node, host: Mapping[Node, Any], device: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Replayed:
    layer = quantize.args[0]
    (apart,) = quantize.users
    (clamp,) = apart.users
    (after,) = clamp.users
    source = layer.args[0]
    while source.target in (QUANTIZE, DEQUANTIZE):
        source = source.args[0]
    # The input of the model is not logged under an operator's handle; it is equal on both sides.
    real = host[layer.args[0]] if source.op == "placeholder" else torch.from_numpy(device[_root(source)][1]).float()
    codes = torch.from_numpy(device[_root(clamp)][0].astype(np.int32))
    weights = [host[parameter] for parameter in layer.args[1:3]]
    assert callable(layer.target)
    assert callable(clamp.target)
    value = layer.target(real, *weights, *layer.args[3:])
    rounded = DEQUANTIZE(QUANTIZE(value, *quantize.args[1:]), *quantize.args[1:])
    clamped, clamped_apart = (
        QUANTIZE(clamp.target(result, *clamp.args[1:]), *after.args[1:]).int() for result in (value, rounded)
    )
    off = (clamped - codes).abs() > 1
    lowest = host[layer.args[2].args[0]] == torch.iinfo(torch.int32).min
    return Replayed(
        module_path=list(layer.meta["nn_module_stack"].values())[-1][0],
        codes_device=len(codes.unique()),
        codes_converted=len(host[after].unique()),
        equal_fused=float((clamped == codes).float().mean()),
        equal_apart=float((clamped_apart == codes).float().mean()),
        off_by_more_than_one=int(off.sum()),
        of_lowest_bias=int(off[:, lowest].sum()),
    )


def _captured(
    lowered: LoweredMethod, capture: CapturedMethod, store: Store
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the quantized and the dequantized values of the first sample on the device, per exported node."""
    (debug,) = capture.debug[:1]
    buffer = np.frombuffer(store.read(debug.buffer), np.uint8)
    events = {}
    for event in read_etdump(store.read(debug.etdump)).tensors:
        if event.delegate_identifier is not None:
            events.setdefault(event.delegate_identifier, event)
    operators = {row.debug_handle: row for row in lowered.operators if row.source_nodes}
    values: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for dumped in lowered.expected_tensors:
        event = events.get(dumped.identifier)
        row = operators.get(dumped.debug_handles[0]) if len(dumped.debug_handles) == 1 else None
        if event is None or row is None or dumped.quantization is None:
            continue
        codes = undo_layout(tensor(event, buffer), dumped.axis_order).copy()
        values[row.source_nodes[-1]] = codes, dequantize(codes, dumped.quantization)
    return values


def _root(node: Node) -> str:
    """Return the node of the exported program from which a node of the converted graph originates."""
    source = node.meta["from_node"][-1]
    while source.from_node:
        source = source.from_node[-1]
    return source.name
