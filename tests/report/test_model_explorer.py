"""The files of a cell for Model Explorer: the edge graph, and node data under the ids of its nodes."""

from __future__ import annotations

import json
from dataclasses import replace

from qnnsweep.tasks.records import Gap, OperatorComparison
from qnnsweep.tasks.records.vocabulary import VERDICTS
from qnnsweep.tasks.report.model_explorer import edge_graph, exported_node_data, node_data
from tests.sample_records import COMPARISON, CONV, EXPORTED, GAP, VIEW, WORSE

UNUSED = replace(CONV, index=2, name="conv[1]", output_index=1, unused=True)
CALLS = {
    "calls": [
        ["aten.convolution.default", [{"input": 0}, {"constant": "weight"}, None, [1, 1]], {}, "float32"],
        ["aten.view_copy.default", [{"operator": 0}, [1, -1]], {"like": {"operator": 0}}, None],
    ],
    "outputs": [{"operator": 1}],
}
THRESHOLDS = [
    {"value": 0.0, "bgColor": "#e8813a"},
    {"value": 10.0, "bgColor": "#f3a35c"},
    {"value": 20.0, "bgColor": "#f6cfa6"},
    {"value": 40.0, "bgColor": "#d9e4ea"},
    {"value": 1e9, "bgColor": "#79b4e4"},
]


def edge(source: str) -> dict[str, str]:
    return {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": "0"}


def shaped(shape: str) -> list[dict[str, object]]:
    return [{"id": "0", "attrs": [{"key": "tensor_shape", "value": shape}]}]


def test_the_edge_graph_has_a_node_for_every_call_under_its_operators_name() -> None:
    assert edge_graph([CONV, VIEW, UNUSED], EXPORTED.methods[0].inputs, json.dumps(CALLS).encode()) == {
        "label": "edge",
        "graphs": [
            {
                "id": "edge",
                "nodes": [
                    {
                        "id": "input:0", "label": "image", "namespace": "inputs",
                        "outputsMetadata": shaped("float32[1,1,8,8]"),
                    },
                    {
                        "id": "conv", "label": "aten.convolution.default", "namespace": "layers/0",
                        "attrs": [
                            {"key": "debug handle", "value": "4"},
                            {"key": "output index", "value": "0"},
                            {"key": "module", "value": "layers.0"},
                            {"key": "runs on", "value": "delegate, subgraph 0"},
                            {"key": "grid", "value": "uint8"},
                        ],
                        "incomingEdges": [edge("input:0")],
                        "outputsMetadata": shaped("float32[1,2,8,8]"),
                    },
                    {
                        "id": "view", "label": "aten.view_copy.default", "namespace": "",
                        "attrs": [{"key": "output index", "value": "0"}, {"key": "runs on", "value": "CPU"}],
                        "incomingEdges": [edge("conv")],
                        "outputsMetadata": [],
                    },
                    {"id": "output", "label": "output", "namespace": "", "incomingEdges": [edge("view")]},
                ],
            }
        ],
    }  # fmt: skip


def test_a_weight_is_in_the_namespace_of_its_readers() -> None:
    """Operators of constants have no module: `scale` is read by two layers, `table` by a weight of the second layer."""
    weight = replace(CONV, name="weight", module_path="")
    names = {
        "weight": "", "scale": "", "table": "", "second_weight": "", "first": "layers.0.conv", "second": "layers.1",
    }  # fmt: skip
    operators = [replace(weight, index=n, name=name, module_path=path) for n, (name, path) in enumerate(names.items())]
    by_name = {name: {"operator": number} for number, name in enumerate(names)}

    def call(*arguments: object) -> list[object]:
        return ["aten.call.default", list(arguments), {}, None]

    calls = [call({"constant": "w"}), call({"constant": "s"}), call({"constant": "t"}), call(by_name["table"])]
    calls += [call({"input": 0}, by_name["weight"], by_name["scale"])]
    calls += [call(by_name["first"], by_name["second_weight"], by_name["scale"])]
    data = json.dumps({"calls": calls, "outputs": [by_name["second"]]}).encode()
    nodes = edge_graph(operators, EXPORTED.methods[0].inputs, data)["graphs"][0]["nodes"]
    assert {node["id"]: node["namespace"] for node in nodes} == {
        "input:0": "inputs",
        "weight": "layers/0/conv",
        "scale": "layers",
        "table": "layers/1",
        "second_weight": "layers/1",
        "first": "layers/0/conv",
        "second": "layers/1",
        "output": "",
    }


def test_a_node_has_its_operators_worst_sample_and_its_worst_verdict() -> None:
    rows = [*COMPARISON.operators, OperatorComparison(operator=CONV, sample=2, status="compared", gap=WORSE)]
    rows += [OperatorComparison(operator=UNUSED, sample=0, status="unused", gap=Gap())]
    introduced = {"name": "introduced SNR, dB", "results": {"conv": {"value": 20.0}}, "thresholds": THRESHOLDS}
    verdicts = {"conv": {"value": "introduced", "bgColor": "#e8813a"}, "view": {"value": "blind", "bgColor": "#dddddd"}}
    assert node_data(rows) == {
        "total_snr_db": {
            "edge": {"name": "total SNR, dB", "results": {"conv": {"value": 30.0}}, "thresholds": THRESHOLDS}
        },
        "introduced_snr_db": {"edge": introduced},
        "verdict": {"edge": {"name": "verdict", "results": verdicts}},
    }


def test_every_verdict_has_a_colour() -> None:
    for verdict in VERDICTS:
        row = OperatorComparison(operator=CONV, sample=0, status="compared", gap=GAP, verdict=verdict)
        assert node_data([row])["verdict"]["edge"]["results"]["conv"]["value"] == verdict


def test_the_exported_program_has_node_data_if_it_is_a_reference() -> None:
    row = OperatorComparison(operator=CONV, sample=0, status="compared", gap=GAP, reference="exported")
    rows = [replace(row, nodes=("conv2d", "batch_norm")), replace(row, reference="quantized", nodes=("conv2d",))]
    rows += [replace(row, nodes=("flatten",), gap=Gap())]
    data = {"name": "total SNR, dB", "results": {"batch_norm": {"value": 40.0}}, "thresholds": THRESHOLDS}
    assert exported_node_data(rows) == {"total_snr_db": {"graph": data}}
    assert exported_node_data([]) == {}
