"""The files of a cell for Google's Model Explorer: the edge graph, and node data with gaps and verdicts.

The id of a node is the node's name in its graph. This module writes the edge graph. The exported graph is read from its
`.pt2` file by Model Explorer's PyTorch adapter, which uses the names of torch.fx.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from posixpath import commonpath
from typing import Any

from qnnsweep.tasks.records import Operator, OperatorComparison, TensorSpec
from qnnsweep.tasks.records.vocabulary import Verdict

EDGE_GRAPH, EXPORTED_GRAPH = "edge", "graph"
"""Ids of graphs. Model Explorer's adapter gives the graph of every `.pt2` file the id `graph`."""

_INPUT = "input:"

# From orange (worst) to blue (best), as in the report. A value has the colour of the first bound that is >= the value.
_SNR_DB = ((0.0, "#e8813a"), (10.0, "#f3a35c"), (20.0, "#f6cfa6"), (40.0, "#d9e4ea"), (1e9, "#79b4e4"))
# Worst first.
_VERDICTS: dict[Verdict, str] = {
    "introduced": "#e8813a", "biased": "#f3a35c", "contradicted": "#c9a6e8", "grid": "#f0d98c", "inherited": "#f6cfa6",
    "within_grid": "#d9e4ea", "exact": "#79b4e4", "blind": "#dddddd",
}  # fmt: skip


def edge_graph(operators: Sequence[Operator], inputs: Sequence[TensorSpec], calls: bytes) -> dict[str, Any]:
    """Return the edge graph in Model Explorer's format. `calls`: the bytes of `LoweredProgram.reference_calls`."""
    graph = json.loads(calls)
    nodes = [
        {"id": _input(number), "label": spec.name, "namespace": "inputs", "outputsMetadata": _shape(spec)}
        for number, spec in enumerate(inputs)
    ]
    namespaces = _namespaces(operators, graph["calls"])
    for operator, (target, *arguments, _) in zip(operators, graph["calls"], strict=False):
        nodes.append(
            {
                "id": operator.name,
                "label": target,
                "namespace": namespaces[operator.name],
                "attrs": list(_attributes(operator)),
                "incomingEdges": _edges(operators, arguments),
                "outputsMetadata": _shape(operator),
            }
        )
    outputs = {"id": "output", "label": "output", "incomingEdges": _edges(operators, graph["outputs"])}
    return {"label": EDGE_GRAPH, "graphs": [{"id": EDGE_GRAPH, "nodes": [*nodes, outputs | {"namespace": ""}]}]}


def node_data(rows: Iterable[OperatorComparison]) -> dict[str, dict[str, Any]]:
    """Return the edge graph's sets of node data by name. An operator has the number or verdict of its worst sample."""
    total: dict[str, float] = {}
    introduced: dict[str, float] = {}
    verdicts: dict[str, Verdict] = {}
    for row in (row for row in rows if not row.operator.unused):  # an unused operator has no node
        name = row.operator.name
        _keep_worst(total, name, row.gap.snr_db)
        _keep_worst(introduced, name, row.parts.introduced_snr_db)
        if name not in verdicts or _severity(row.verdict) < _severity(verdicts[name]):
            verdicts[name] = row.verdict
    return {
        "total_snr_db": {EDGE_GRAPH: _numbers("total SNR, dB", total)},
        "introduced_snr_db": {EDGE_GRAPH: _numbers("introduced SNR, dB", introduced)},
        "verdict": {EDGE_GRAPH: _words("verdict", verdicts)},
    }


def exported_node_data(rows: Iterable[OperatorComparison]) -> dict[str, dict[str, Any]]:
    """Return the exported graph's node data: per node, the total SNR of the operator whose value the node computes."""
    total: dict[str, float] = {}
    for row in rows:
        if row.reference == "exported" and row.nodes:
            _keep_worst(total, row.nodes[-1], row.gap.snr_db)
    return {"total_snr_db": {EXPORTED_GRAPH: _numbers("total SNR, dB", total)}} if total else {}


def _keep_worst(values: dict[str, float], name: str, snr_db: float | None) -> None:
    if snr_db is not None:
        values[name] = min(values.get(name, snr_db), snr_db)


def _severity(verdict: Verdict) -> int:
    return list(_VERDICTS).index(verdict)


def _numbers(name: str, values: Mapping[str, float]) -> dict[str, Any]:
    thresholds = [{"value": limit, "bgColor": colour} for limit, colour in _SNR_DB]
    return {
        "name": name,
        "results": {node: {"value": value} for node, value in values.items()},
        "thresholds": thresholds,
    }


def _words(name: str, values: Mapping[str, Verdict]) -> dict[str, Any]:
    results = {node: {"value": word, "bgColor": _VERDICTS[word]} for node, word in values.items()}
    return {"name": name, "results": results}


def _namespaces(operators: Sequence[Operator], calls: Sequence[Any]) -> dict[str, str]:
    """Map each node to its namespace: its module or, for a node that is computed from constants alone, its readers'.

    Model Explorer draws the nodes of one namespace beside each other. Weights outside the namespace of their reader
    make the graph so wide that nothing in it can be read.
    """
    namespaces: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    depends: set[str] = set()  # the nodes that depend on the program's inputs
    sources = [[*_sources(operators, arguments)] for _, *arguments, _ in calls]
    for operator, read in zip(operators, sources, strict=False):
        if any(source in depends or source.startswith(_INPUT) for source in read):
            depends.add(operator.name)
    # From the last node to the first, because the namespace of a weight's reader can be that of another reader.
    for operator, read in reversed([*zip(operators, sources, strict=False)]):
        module = operator.module_path.replace(".", "/")
        read_in = readers.get(operator.name, [])
        namespaces[operator.name] = module if operator.name in depends or not read_in else commonpath(read_in)
        for source in read:
            readers.setdefault(source, []).append(namespaces[operator.name])
    return namespaces


def _attributes(operator: Operator) -> Iterator[dict[str, str]]:
    attributes = {
        "debug handle": operator.debug_handle,
        "output index": operator.output_index,
        "module": operator.module_path,
        "runs on": "CPU" if operator.subgraph is None else f"delegate, subgraph {operator.subgraph}",
        "grid": operator.quantization and operator.quantization.dtype,
    }
    yield from ({"key": key, "value": str(value)} for key, value in attributes.items() if value not in (None, ""))


def _edges(operators: Sequence[Operator], arguments: Any) -> list[dict[str, str]]:
    sources = dict.fromkeys(_sources(operators, arguments))
    return [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(position)}
        for position, source in enumerate(sources)
    ]


def _sources(operators: Sequence[Operator], encoded: Any) -> Iterator[str]:
    """Yield the ids of the nodes whose values an argument has; see `qnnsweep.tasks.toolchain.reference.graph`."""
    if isinstance(encoded, list):
        for item in encoded:
            yield from _sources(operators, item)
    elif isinstance(encoded, dict):
        for kind, value in encoded.items():
            if kind == "operator":
                yield operators[value].name
            elif kind == "input":
                yield _input(value)
            else:
                yield from _sources(operators, value)


def _input(number: int) -> str:
    return f"{_INPUT}{number}"


def _shape(tensor: Operator | TensorSpec) -> list[dict[str, Any]]:
    if tensor.shape is None:
        return []
    shape = f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    return [{"id": "0", "attrs": [{"key": "tensor_shape", "value": shape}]}]
