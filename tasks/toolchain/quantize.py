"""The quantization of exported programs with torchao's pt2e flow. Runs in a worker."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.fx import GraphModule, Node
from torch.fx.traceback import NodeSource
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.records import Blob, ExportedModel, QuantizedModel
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.export import make_deterministic
from qnnsweep.tasks.toolchain.nodes import OBSERVER_REPLACEMENT
from qnnsweep.tasks.toolchain.overridden import METHOD_OF_GRAPH
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.shared_observers import equalize_states, share_observers
from qnnsweep.tasks.toolchain.tensors import outputs_by_sample, put_tensors, read_samples


def quantize_methods(
    methods: Sequence[ExportedModel], scheme: SchemeConfig, kind: str, store: Store
) -> list[QuantizedModel]:
    """Quantize the exported program of every method: prepare, calibrate, convert.

    A floating-point scheme leaves the programs unchanged. The methods of a model with states are calibrated together.
    """
    make_deterministic()
    modules = [_loaded(exported, store) for exported in methods]
    if scheme.precision is not Precision.quantized:
        pairs = zip(methods, modules, strict=True)
        return [_quantized(exported, module, scheme, store, exported.program) for exported, module in pairs]
    compiler = backend_of(kind).compiler(scheme, None)
    with torch.no_grad():
        prepared = [prepare_pt2e(module, compiler.quantizer(scheme, module)) for module in modules]
        driven = methods[0].driven
        by_name = {exported.method or METHOD: graph for exported, graph in zip(methods, prepared, strict=True)}
        if driven is not None:
            share_observers(by_name)
        for exported, graph in zip(methods, prepared, strict=True):
            assert exported.calibration is not None, "checked by qnnsweep.conf.load"
            count = min(scheme.calibration_samples, exported.calibration_samples)
            for sample in read_samples(store, exported.calibration, _input_names(exported), count):
                graph(*sample)
        if driven is not None:
            equalize_states(by_name, driven.links)
    return [_converted_model(*pair, scheme, store) for pair in zip(methods, prepared, strict=True)]


def _loaded(exported: ExportedModel, store: Store) -> GraphModule:
    """Return the exported graph, with the name of its method."""
    module = load_program(store, exported.program).module()
    module.meta[METHOD_OF_GRAPH] = exported.method
    return module


def check_overrides(exported: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> None:
    """Raise RequestError if an override of the scheme does not fit the exported program. Nothing is calibrated."""
    module = _loaded(exported, store)
    prepare_pt2e(module, backend_of(kind).compiler(scheme, None).quantizer(scheme, module))


def _converted_model(
    exported: ExportedModel, prepared: GraphModule, scheme: SchemeConfig, store: Store
) -> QuantizedModel:
    """Convert a graph that is calibrated, and store it."""
    with torch.no_grad():
        observers = _weight_observers(prepared)
        float_weights = put_tensors(
            store, {node.name: _attribute(prepared, node.all_input_nodes[0]).float() for node in observers}
        )
        module = _converted(prepared, observers)
        sample = read_samples(store, exported.evaluation, _input_names(exported), 1)[0]
        torch.export.save(torch.export.export(module, sample, strict=True), "program.pt2")
    return _quantized(exported, module, scheme, store, store.put_file(Path("program.pt2")), float_weights)


def _quantized(
    exported: ExportedModel,
    module: torch.nn.Module,
    scheme: SchemeConfig,
    store: Store,
    program: Blob,
    float_weights: Blob | None = None,
) -> QuantizedModel:
    """Return the record of a graph, with its outputs on the host."""
    with torch.no_grad():
        evaluation = read_samples(store, exported.evaluation, _input_names(exported), len(exported.sample_names))
        answers = [module(*sample) for sample in evaluation]
    return QuantizedModel(
        exported=exported,
        scheme=scheme.name,
        program=program,
        quantized=scheme.precision is Precision.quantized,
        outputs_quantized=put_tensors(store, outputs_by_sample(answers)),
        float_weights=float_weights,
    )


def _input_names(exported: ExportedModel) -> list[str]:
    return [spec.name for spec in exported.inputs]


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
