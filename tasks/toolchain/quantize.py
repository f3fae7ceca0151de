"""The quantization of exported programs with torchao's pt2e flow. Runs in a worker."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.traceback import NodeSource
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.records import Blob, ExportedMethod, ExportedModel, QuantizedMethod, QuantizedModel, StateLink
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.compiler import Compiler
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.batch_norms import with_own_convolutions
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.nodes import OBSERVER_REPLACEMENT, attribute, make_portable
from qnnsweep.tasks.toolchain.overridden import INPUTS_OF_GRAPH, METHOD_OF_GRAPH
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.shared_observers import equalize_states, share_observers
from qnnsweep.tasks.toolchain.tensors import outputs_by_sample, put_tensors, read_samples
from qnnsweep.tasks.toolchain.training_patterns import without_training_patterns


def quantize_model(model: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> QuantizedModel:
    """Quantize the exported program of every method: prepare, calibrate, convert.

    A floating-point scheme leaves the programs unchanged. The methods of a model with states are calibrated together.
    """
    make_deterministic()
    modules = [_loaded(exported, store) for exported in model.methods]
    if scheme.precision is not Precision.quantized:
        pairs = zip(model.methods, modules, strict=True)
        methods = [_quantized(exported, module, store, exported.program) for exported, module in pairs]
        return QuantizedModel(model=model.model, methods=tuple(methods))
    driven = model.model.driven
    graphs = _calibrated(model.methods, modules, scheme, kind, None if driven is None else driven.plan.links, store)
    methods = [_converted_method(*pair, store) for pair in zip(model.methods, graphs, strict=True)]
    return QuantizedModel(model=model.model, methods=tuple(methods))


def quantized_programs(
    methods: Sequence[ExportedMethod], scheme: SchemeConfig, kind: str, links: Sequence[StateLink] | None, store: Store
) -> Iterator[ExportedProgram]:
    """Yield the quantized program of every method, without storing anything. `links`: None without states."""
    modules = [_loaded(exported, store) for exported in methods]
    for exported, graph in zip(methods, _calibrated(methods, modules, scheme, kind, links, store), strict=True):
        with torch.no_grad():
            sample = read_samples(store, exported.evaluation, input_names(exported), 1)[0]
            program = torch.export.export(_converted(graph, _weight_observers(graph)), sample, strict=True)
        yield program


def _calibrated(
    methods: Sequence[ExportedMethod],
    modules: Sequence[GraphModule],
    scheme: SchemeConfig,
    kind: str,
    links: Sequence[StateLink] | None,
    store: Store,
) -> list[GraphModule]:
    """Return the calibrated graph of every method. With states, the methods are calibrated together."""
    compiler = backend_of(kind).compiler(scheme, None)
    with torch.no_grad():
        prepared = [_prepared(module, compiler, scheme) for module in modules]
        by_name = {exported.name: graph for exported, graph in zip(methods, prepared, strict=True)}
        if links is not None:
            share_observers(by_name)
        for exported, graph in zip(methods, prepared, strict=True):
            _calibrate(exported, graph, scheme, store)
        if links is not None:
            equalize_states(by_name, links)
    return prepared


def _calibrate(exported: ExportedMethod, prepared: GraphModule, scheme: SchemeConfig, store: Store) -> None:
    assert exported.calibration is not None, "checked by qnnsweep.conf.load"
    count = min(scheme.calibration_samples, exported.calibration_samples)
    for sample in read_samples(store, exported.calibration, input_names(exported), count):
        prepared(*sample)


def _loaded(exported: ExportedMethod, store: Store) -> GraphModule:
    """Return the exported graph, with the names of its method and of its inputs."""
    module = load_program(store, exported.program).module()
    module.meta[METHOD_OF_GRAPH] = exported.method
    module.meta[INPUTS_OF_GRAPH] = input_names(exported)
    return module


def check_overrides(model: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> None:
    """Raise RequestError if an override of the scheme does not fit an exported program. Nothing is calibrated."""
    for exported in model.methods:
        _prepared(_loaded(exported, store), backend_of(kind).compiler(scheme, None), scheme)


def _prepared(module: GraphModule, compiler: Compiler, scheme: SchemeConfig) -> GraphModule:
    """Return the graph with observers. What torchao folds is folded."""
    return prepare_pt2e(with_own_convolutions(module), compiler.quantizer(scheme, module))


def _converted_method(exported: ExportedMethod, prepared: GraphModule, store: Store) -> QuantizedMethod:
    """Convert a graph that is calibrated, and store it."""
    with torch.no_grad():
        observers = _weight_observers(prepared)
        float_weights = put_tensors(
            store, {node.name: attribute(prepared, node.all_input_nodes[0]).float() for node in observers}
        )
        module = _converted(prepared, observers)
        sample = read_samples(store, exported.evaluation, input_names(exported), 1)[0]
        program = torch.export.export(module, sample, strict=True)
        make_portable(program)
        torch.export.save(program, "program.pt2")
    return _quantized(exported, module, store, store.take_file(Path("program.pt2")), float_weights)


def _quantized(
    exported: ExportedMethod, module: torch.nn.Module, store: Store, program: Blob, float_weights: Blob | None = None
) -> QuantizedMethod:
    """Return the record of a graph, with its outputs on the host."""
    with torch.no_grad():
        evaluation = read_samples(store, exported.evaluation, input_names(exported), len(exported.sample_names))
        answers = [module(*sample) for sample in evaluation]
    return QuantizedMethod(
        exported=exported,
        program=program,
        outputs_quantized=put_tensors(store, outputs_by_sample(answers)),
        float_weights=float_weights,
    )


def input_names(exported: ExportedMethod) -> list[str]:
    """Return the names of a method's inputs, by which its samples are stored."""
    return [spec.name for spec in exported.inputs]


def _weight_observers(prepared: GraphModule) -> list[Node]:
    """Return the observers of weights and biases. Calibration does not change the values that they observe."""
    return [
        node
        for node in prepared.graph.nodes
        if node.op == "call_module" and [source.op for source in node.all_input_nodes] == ["get_attr"]
    ]


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
    with without_training_patterns(prepared):
        converted = convert_pt2e(prepared)
    _drop_unread(converted)
    for reader in converted.graph.nodes:
        for position, node in enumerate(reader.all_input_nodes):
            ancestor = ancestors.get((reader.name, position))
            if ancestor is not None and node.op == "call_function":
                node.meta.setdefault("from_node", [ancestor])
    return converted


def _drop_unread(module: GraphModule) -> None:
    """Drop the parameters and buffers that no node reads. torchao keeps the weights that it has rounded, in float32."""
    read = {f"{node.target}." for node in module.graph.nodes if node.op in ("get_attr", "call_module")}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name in {name for name, _ in named if not f"{name}.".startswith(tuple(read))}:
        owner, _, leaf = name.rpartition(".")
        delattr(module.get_submodule(owner), leaf)
