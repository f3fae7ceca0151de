"""The quantization of an exported program with torchao's pt2e flow. Runs in a worker."""

from pathlib import Path

import torch
from torch.fx import GraphModule, Node
from torch.fx.traceback import NodeSource
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from conf.schemes import Precision, SchemeConfig
from tasks.records import Blob, ExportedModel, QuantizedModel
from tasks.storage.store import Store
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.export import make_deterministic
from tasks.toolchain.saved_program import load_program
from tasks.toolchain.tensors import outputs_by_sample, put_tensors, read_samples

OBSERVER_REPLACEMENT = "replace_observer_with_quantize_dequantize_node"
"""The pass of torchao that replaces an observer by the nodes that round a value, as the ancestry of nodes names it."""


def quantize_model(exported: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> QuantizedModel:
    """Quantize the exported program: prepare, calibrate, convert. A floating-point scheme leaves it unchanged."""
    make_deterministic()
    names = [spec.name for spec in exported.inputs]
    evaluation = read_samples(store, exported.evaluation, names, len(exported.sample_names))
    blob = exported.program
    module = load_program(store, blob).module()
    quantized = scheme.precision is Precision.quantized
    float_weights: Blob | None = None
    with torch.no_grad():
        if quantized:
            assert exported.calibration is not None, "checked by conf.load"
            count = min(scheme.calibration_samples, exported.calibration_samples)
            prepared = prepare_pt2e(module, backend_of(kind).compiler(scheme, None).quantizer(scheme, module))
            for sample in read_samples(store, exported.calibration, names, count):
                prepared(*sample)
            observers = _weight_observers(prepared)
            float_weights = put_tensors(
                store, {node.name: _attribute(prepared, node.all_input_nodes[0]).float() for node in observers}
            )
            module = _converted(prepared, observers)
            torch.export.save(torch.export.export(module, evaluation[0], strict=True), "program.pt2")
            blob = store.put_file(Path("program.pt2"))
        answers = [module(*sample) for sample in evaluation]
    return QuantizedModel(
        exported=exported,
        scheme=scheme.name,
        program=blob,
        quantized=quantized,
        outputs_quantized=put_tensors(store, outputs_by_sample(answers)),
        float_weights=float_weights,
    )


def _weight_observers(prepared: GraphModule) -> list[Node]:
    """Return the observers of weights and biases. Calibration does not change the values that they observe."""
    return [
        node
        for node in prepared.graph.nodes
        if node.op == "call_module" and [source.op for source in node.all_input_nodes] == ["get_attr"]
    ]


def _attribute(module: GraphModule, node: Node) -> torch.Tensor:
    owner, _, name = str(node.target).rpartition(".")
    return getattr(module.get_submodule(owner), name)


def _converted(prepared: GraphModule, observers: list[Node]) -> GraphModule:
    """Return the converted graph. Each node that dequantizes a weight has the weight's observer as its ancestor.

    torchao does not record this ancestor for a weight with one scale per block. To find the node, the positions at
    which other nodes read the observer are noted before the conversion.
    """
    ancestors = {
        (reader.name, reader.all_input_nodes.index(observer)): NodeSource(observer, OBSERVER_REPLACEMENT)
        for observer in observers
        for reader in observer.users
    }
    converted = convert_pt2e(prepared)
    for reader in converted.graph.nodes:
        for position, node in enumerate(reader.all_input_nodes):
            ancestor = ancestors.get((reader.name, position))
            if ancestor is not None and node.op == "call_function":
                node.meta.setdefault("from_node", [ancestor])
    return converted
