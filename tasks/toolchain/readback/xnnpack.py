"""A reader of the graphs that ExecuTorch's XNNPACK delegate stores in programs, which checks every offset."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.toolchain.fbs import layout

_LAYOUT = "backends/xnnpack/serialization/schema.fbs"
_FILE_TYPE = "XNNPACK graph"
_MAGIC, _HEADER_BYTES, _IDENTIFIERS = b"XH00", 30, (b"XN00", b"XN01")


@dataclass(frozen=True, kw_only=True, slots=True)
class XnnNode:
    """A node. `tensors`: the numbers of the tensors by the field's name, such as `filter` or `output`."""

    operator: str
    tensors: Mapping[str, int]
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class XnnTensor:
    number: int
    dtype: str
    shape: tuple[int, ...]
    scale: tuple[float, ...] | None
    zero_point: tuple[int, ...] | None
    data: memoryview | None
    """The bytes of a constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class XnnGraph:
    nodes: tuple[XnnNode, ...]
    tensors: tuple[XnnTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_xnnpack(processed: bytes, named_data: Mapping[str, memoryview]) -> XnnGraph:
    """Return the graph of a delegated subgraph. `named_data`: of the program. Raises EvidenceError."""
    start, size, constants, constants_size = 0, len(processed), 0, 0
    if processed[4:8] == _MAGIC:
        ends = ((10, 14), (14, 18), (18, 22), (22, 30))
        start, size, constants, constants_size = (int.from_bytes(processed[a:b], "little") for a, b in ends)
        if len(processed) < max(_HEADER_BYTES, start + size, constants + constants_size):
            raise _refusal(f"{len(processed)} bytes are too few; it was cut short")
    graph = processed[start : start + size]
    if graph[4:8] not in _IDENTIFIERS:
        raise _refusal(f"its identifier is {graph[4:8]!r}")
    read = layout(_LAYOUT).read(graph, "XNNGraph", file_type=_FILE_TYPE)
    data = memoryview(processed)[constants : constants + constants_size]

    def constant(index: int) -> memoryview:
        if index >= len(read["constant_data"]):
            raise _refusal(f"there is no constant {index}")
        place = read["constant_data"][index]
        if place["named_key"]:
            if place["named_key"] not in named_data:
                raise _refusal(f"the program has no data {place['named_key']!r}")
            return named_data[place["named_key"]][: place["size"]]
        if place["offset"] + place["size"] > len(data):
            raise _refusal(f"constant {index} lies outside of its data")
        return data[place["offset"] : place["offset"] + place["size"]]

    values = [value["xvalue_union"] for value in read["xvalues"]]
    nodes = [node["xnode_union"] for node in read["xnodes"]]
    if None in values or None in nodes:
        raise _refusal("a node or a tensor is missing")
    return XnnGraph(
        nodes=tuple(_node(*node) for node in nodes),
        tensors=tuple(_tensor(value, constant) for value in values),
        inputs=read["input_ids"],
        outputs=read["output_ids"],
    )


def _node(operator: str, fields: Mapping[str, Any]) -> XnnNode:
    return XnnNode(
        operator=operator,
        tensors={name.removesuffix("_id"): value for name, value in fields.items() if name.endswith("_id")},
        arguments={name: value for name, value in fields.items() if not name.endswith("_id")},
    )


_Member = tuple[str, Mapping[str, Any]]


def _tensor(member: _Member, constant: Callable[[int], memoryview]) -> XnnTensor:
    kind, fields = member
    quantization = fields.get("quant_params") if kind == "XNNQuantizedTensorValue" else None
    value = fields["tensor_value"] if kind == "XNNQuantizedTensorValue" else fields
    if value is None:
        raise _refusal("a tensor is missing")
    scale, zero_point = _grid(quantization, constant) if quantization else (None, None)
    index = value["constant_buffer_idx"]
    return XnnTensor(
        number=value["id_out"],
        dtype=value["datatype"].removeprefix("xnn_datatype_"),
        shape=value["dims"],
        scale=scale,
        zero_point=zero_point,
        data=constant(index) if index else None,
    )


def _grid(
    member: _Member, constant: Callable[[int], memoryview]
) -> tuple[tuple[float, ...] | None, tuple[int, ...] | None]:
    kind, fields = member
    if kind == "PerTensorQuant":
        return (fields["scale"],), (fields["zero_point"],)
    if kind == "PerChannelQuant":
        count, index = fields["num_scales"], fields["scale_buffer_idx"]
        stored = constant(index)[: 4 * count] if index else b""
        if index and len(stored) < 4 * count:
            raise _refusal(f"{count} scales are announced in {len(stored)} bytes")
        scale = struct.unpack(f"<{count}f", stored) if index else fields["scale"]
        return scale, (0,) * len(scale)
    return None, None


def names(graph: XnnGraph) -> dict[int, str]:
    """Return a name per tensor: the node that writes it, or else the first node that reads it, and its place there."""
    written, read = dict(_places(graph, ("output",))), dict(reversed(list(_places(graph, ()))))
    return read | written


def _places(graph: XnnGraph, only: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for number, node in enumerate(graph.nodes):
        for place, tensor in node.tensors.items():
            if not only or place.startswith(only):
                yield tensor, f"{node.operator} {number}/{place}"


def _refusal(problem: str) -> EvidenceError:
    return EvidenceError(f"not a readable {_FILE_TYPE}: {problem}")
