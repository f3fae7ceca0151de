"""What the device computed at every fused pair, against both readings of the graph. Runs in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pairs import DEQUANTIZE, QUANTIZE, fused_names
from torch.fx import GraphModule, Interpreter, Node

from tasks.numerics.dequantize import dequantize, undo_layout
from tasks.records import Capture, LoweredProgram
from tasks.storage.store import Store
from tasks.toolchain.export import settle
from tasks.toolchain.quantize import load_program
from tasks.toolchain.readback.etdump import read_etdump, tensor
from tasks.toolchain.tensors import read_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """One fused pair: the clamp behind it, as the device logged it for the first sample.

    `equal_*` are shares of elements with the device's very code, when convolution and clamp are computed on the host
    from the device's own input, rounding at the pair (`apart`) or not (`fused`).
    """

    module_path: str
    codes_device: int
    codes_converted: int
    equal_fused: float
    equal_apart: float
    off_by_more_than_one: int
    """Elements whose device code is more than one from the fused replay's."""
    of_lowest_bias: int
    """How many of those lie in channels whose bias code is int32's lowest."""


def replay(lowered: LoweredProgram, capture: Capture, store: Store) -> list[Replayed]:
    settle()
    exported = lowered.quantized.exported
    module = load_program(store, lowered.quantized.program).module()
    names = [spec.name for spec in exported.inputs]
    host = _Values(module)
    with torch.no_grad():
        host.run(*read_samples(store, exported.evaluation, names, 1)[0])
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
    taken = layer.args[0]
    while taken.target in (QUANTIZE, DEQUANTIZE):
        taken = taken.args[0]
    # The model's own input is logged under no operator's handle; both sides have the same one.
    real = host[layer.args[0]] if taken.op == "placeholder" else torch.from_numpy(device[_root(taken)][1]).float()
    codes = torch.from_numpy(device[_root(clamp)][0].astype(np.int32))
    weights = [host[each] for each in layer.args[1:3]]
    assert callable(layer.target)
    assert callable(clamp.target)
    value = layer.target(real, *weights, *layer.args[3:])
    snapped = DEQUANTIZE(QUANTIZE(value, *quantize.args[1:]), *quantize.args[1:])
    clamped, clamped_apart = (
        QUANTIZE(clamp.target(each, *clamp.args[1:]), *after.args[1:]).int() for each in (value, snapped)
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


def _captured(lowered: LoweredProgram, capture: Capture, store: Store) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Codes and reals that the device logged for the first sample, by the exported program's node."""
    assert capture.etdump_debug is not None, "the debug program ran"
    assert capture.debug_buffer is not None, "the debug program ran"
    buffer = np.frombuffer(store.read(capture.debug_buffer), np.uint8)
    events = {}
    for event in read_etdump(store.read(capture.etdump_debug)).tensors:
        if event.delegate_identifier is not None:
            events.setdefault(event.delegate_identifier, event)
    operators = {row.debug_handle: row for row in lowered.operators if row.source_nodes}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for dumped in lowered.expected_tensors:
        event = events.get(dumped.identifier)
        row = operators.get(dumped.debug_handles[0]) if len(dumped.debug_handles) == 1 else None
        if event is None or row is None or dumped.quantization is None:
            continue
        codes = undo_layout(tensor(event, buffer), dumped.axis_order).copy()
        found[row.source_nodes[-1]] = codes, dequantize(codes, dumped.quantization)
    return found


def _root(node: Node) -> str:
    """The exported program's node that a converted graph's node comes from."""
    source = node.meta["from_node"][-1]
    while source.from_node:
        source = source.from_node[-1]
    return source.name
