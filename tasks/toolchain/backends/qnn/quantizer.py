"""ExecuTorch's quantizer for a scheme, and the changes of its annotations for the scheme's overrides."""

import copy
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch
from executorch.backends.qualcomm.export_utils import make_quantizer
from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QnnQuantizer, QuantDtype
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import observer as observers
from torchao.quantization.pt2e.quantizer import QuantizationSpec, Quantizer, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from qnnsweep.conf.errors import printable
from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.toolchain.backends.qnn.annotations import annotation_of, on_range, origin, result_spec
from qnnsweep.tasks.toolchain.batch_norms import as_convolutions, is_written_as_convolution
from qnnsweep.tasks.toolchain.overridden import (
    INPUTS_OF_GRAPH,
    METHOD_OF_GRAPH,
    configured_name,
    is_input,
    operator_type,
    overrides_of,
    select,
)
from qnnsweep.tasks.toolchain.tensors import LARGEST_BIAS

_BLOCKS = "16a4w_block"
_FLOATS = (OverridePrecision.float16, OverridePrecision.cpu)
_MOST_NAMES = 6
_RELUS = {"relu": (0.0, None), "relu6": (0.0, 6.0)}
_CLAMPS = (*_RELUS, "hardtanh", "clamp", "clamp_min", "clamp_max")
_NO_BLOCKS = "the number of input channels of no weight is a multiple of the block's, or the shapes differ in rank"
_FALSE_IS_NO_CHANGE = ("fit_weights", "share_clamp", "as_conv2d")
_NOT_QUANTIZED = "ExecuTorch quantizes none of their values"
LARGEST_WEIGHT = 127 * 257
"""The largest quantized value of a 16-bit weight in HTP's kernels, which split it into two signed bytes. Larger ones
saturate: the largest weight of a channel, with 32767, becomes 0.4 % smaller (docs/findings.md)."""
Limits = tuple[float | None, float | None]


def quantizer_of(scheme: SchemeConfig, module: GraphModule) -> Quantizer:
    """Return ExecuTorch's quantizer for the scheme, with all overrides of the scheme."""
    quantizer = make_quantizer(
        quant_dtype=QuantDtype[f"use_{scheme.quant_dtype}"],
        per_channel_conv=scheme.per_channel_conv,
        per_channel_linear=scheme.per_channel_linear,
        per_channel_embedding=scheme.per_channel_embedding,
        act_observer=getattr(observers, scheme.observer),
        act_symmetric=scheme.activation_symmetric,
    )
    # A strict quantizer needs an SoC, to refuse what the SoC cannot compute. The compiler refuses it anyway.
    quantizer.strict = False
    if scheme.block_size:
        quantizer.set_block_size_map(_block_sizes(module, scheme))
        # Each operator type gets its own copy: types that share a configuration would all get the last block size.
        config = quantizer.default_quant_config
        quantizer.set_submodule_qconfig_list(
            [(lambda node, kind=kind: operator_type(node) == kind, copy.deepcopy(config)) for kind in scheme.block_size]
        )
    quantizer.add_custom_quant_annotations([_leave_integers])
    if not scheme.overrides:
        return quantizer
    return OverridingQuantizer(
        quantizer, scheme, module.meta.get(METHOD_OF_GRAPH) or METHOD, module.meta.get(INPUTS_OF_GRAPH, ())
    )


class OverridingQuantizer(Quantizer):
    """A QnnQuantizer for a scheme with overrides. The operators are selected in the graph that is annotated."""

    def __init__(self, quantizer: QnnQuantizer, scheme: SchemeConfig, method: str, inputs: Sequence[str]) -> None:
        super().__init__()
        self._quantizer = quantizer
        self._scheme = scheme
        self._method = method
        self._inputs = inputs

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        model = self._quantizer.transform_for_annotation(model)
        settings = select(model.graph, self._scheme.overrides, self._method, self._inputs)
        return as_convolutions(model, lambda node: node in settings and bool(settings[node].as_conv2d))

    def validate(self, model: GraphModule) -> None:
        self._quantizer.validate(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        settings = select(model.graph, self._scheme.overrides, self._method, self._inputs)
        quantizer = self._quantizer
        quantizer.add_discard_nodes([node.name for node, override in settings.items() if override.precision in _FLOATS])
        blocks = {node: shape for node, override in settings.items() if (shape := self._block_of(node, override))}
        overridden = {node.name for node in settings}
        others = {name: shape for name, shape in quantizer.block_size_map.items() if name not in overridden}
        quantizer.set_block_size_map(others | {node.name: shape for node, shape in blocks.items()})
        quantizer.set_submodule_qconfig_list([*self._configs(settings, blocks), *quantizer.submodule_qconfig_list])
        quantizer.add_custom_quant_annotations(
            [_leave_integers, lambda graph: self._adjust(graph, settings, blocks.keys())]
        )
        quantizer.annotate(model)
        return model

    def _block_of(self, node: Node, override: SchemeOverride) -> tuple[int, ...] | None:
        """Return the block's shape for the node's weight; None if its weight has no blocks."""
        if (override.quant_dtype or self._scheme.quant_dtype) != _BLOCKS:
            return None
        shape = override.block_size or self._scheme.block_size.get(operator_type(node))
        return tuple(shape) if shape is not None and _fits(node, shape) else None

    def _configs(
        self, settings: Mapping[Node, SchemeOverride], blocks: Mapping[Node, tuple[int, ...]]
    ) -> list[tuple[Callable[[Node], bool], ModuleQConfig]]:
        """Return ExecuTorch's configurations of the overridden nodes, each with the nodes that have it.

        Nodes with different blocks need different configurations, because ExecuTorch notes the block in them.
        """
        scheme = self._scheme
        nodes: dict[tuple[Any, ...], set[Node]] = {}
        for node, override in settings.items():
            per_channel = override.per_channel
            key = (
                override.quant_dtype or scheme.quant_dtype,
                override.observer or scheme.observer,
                scheme.activation_symmetric if override.symmetric is None else override.symmetric,
                *(
                    default if per_channel is None else per_channel
                    for default in (scheme.per_channel_conv, scheme.per_channel_linear, scheme.per_channel_embedding)
                ),
                blocks.get(node),
            )
            nodes.setdefault(key, set()).add(node)
        return [
            (
                nodes_of_key.__contains__,
                ModuleQConfig(
                    quant_dtype=QuantDtype[f"use_{dtype}"],
                    is_conv_per_channel=conv,
                    is_linear_per_channel=linear,
                    is_embedding_per_channel=embedding,
                    act_observer=getattr(observers, observer),
                    act_symmetric=symmetric,
                ),
            )
            for (dtype, observer, symmetric, conv, linear, embedding, _), nodes_of_key in nodes.items()
        ]

    def _adjust(self, model: GraphModule, settings: Mapping[Node, SchemeOverride], blocks: AbstractSet[Node]) -> None:
        """Change the annotations that ExecuTorch's configurations cannot express."""
        for node, override in settings.items():
            if override.range is not None and (spec := result_spec(node)) is not None:
                annotation_of(node).output_qspec = on_range(spec, override.range)
            if override.constant_range is not None:
                _fix_constants(node, override.constant_range)
            if override.least_weight_scale is not None:
                _raise_weight_scales(node, override.least_weight_scale)
            if override.fit_weights and (weight := _weight_on_16_bits(node)) is not None:
                source, spec = weight
                fitted = replace(spec, quant_min=-LARGEST_WEIGHT, quant_max=LARGEST_WEIGHT)
                annotation_of(node).input_qspec_map[source] = fitted
        for node, override in settings.items():
            if override.share_clamp and (clamp := clamp_of(node)) is not None:
                _share(node, clamp)
            _fit_bias(node)
        for node in model.graph.nodes:
            self._share_inputs(node, settings)
        self._check_effects(settings, blocks)

    def _share_inputs(self, node: Node, settings: Mapping[Node, SchemeOverride]) -> None:
        """Let the node read overridden values on the grids that they have, unless it needs another dtype.

        An input of the model has the grid of its override, or else that of the scheme. An operand that must be
        symmetric keeps its grid.
        """
        specs = annotation_of(node).input_qspec_map
        default = self._quantizer.default_quant_config.quant_config.input_activation
        for source, spec in specs.items():
            if not isinstance(spec, QuantizationSpec) or {node, source, origin(source)}.isdisjoint(settings):
                continue
            result = result_spec(source)
            if result is not None and result.dtype == spec.dtype:
                specs[source] = SharedQuantizationSpec(source)
            elif is_input(source) and source in settings:
                if spec.qscheme == default.qscheme:
                    specs[source] = on_range(spec, settings[source].range or ())
            elif result is None and is_input(source) and default.dtype == spec.dtype:
                specs[source] = default

    def _check_effects(self, settings: Mapping[Node, SchemeOverride], blocks: AbstractSet[Node]) -> None:
        """Raise RequestError for an override that changes none of the operators that it selects."""
        for index, override in enumerate(self._scheme.overrides):
            nodes = [node for node in settings if index in overrides_of(node)]
            if not nodes:  # an override of another method
                continue
            for name, reason, has_effect in _EFFECTS:
                asked = getattr(override, name)
                ineffective = asked is not None and not any(map(has_effect, nodes))
                if ineffective and (name not in _FALSE_IS_NO_CHANGE or asked):
                    raise _no_effect(index, name, asked, nodes, reason)
            if override.block_size is not None and blocks.isdisjoint(nodes):
                raise _no_effect(index, "block_size", override.block_size, nodes, _NO_BLOCKS)


def clamp_of(node: Node) -> Node | None:
    """Return the clamp that is the only reader of the node's value; None if there is no such clamp."""
    (reader,) = node.users if len(node.users) == 1 else (None,)
    return reader if reader is not None and operator_type(reader).rstrip("_") in _CLAMPS else None


def _no_effect(index: int, name: str, asked: object, nodes: Sequence[Node], reason: str) -> RequestError:
    kind = "inputs" if is_input(nodes[0]) else "operators"
    names = ", ".join(map(configured_name, nodes[:_MOST_NAMES]))
    more = f" and {len(nodes) - _MOST_NAMES} others" if len(nodes) > _MOST_NAMES else ""
    problem = f"has no effect on the selected {kind} ({names}{more}): {reason}"
    return RequestError(problem, key=f"scheme.overrides[{index}].{name}", value=printable(asked))


def _leave_integers(model: GraphModule) -> None:
    """Remove the annotations of tensors that are no floating-point numbers: positions, token ids and masks.

    ExecuTorch annotates the inputs of some operators, such as argmax, whatever their dtype is.
    """
    for node in model.graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is None:
            continue
        for source in [source for source in annotation.input_qspec_map if not _has_floats(source)]:
            del annotation.input_qspec_map[source]
        if not _has_floats(node):
            annotation.output_qspec = None


def _has_floats(node: Node) -> bool:
    """Return whether a value can be quantized. A value whose dtype is not known can be."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def _fix_constants(node: Node, limits: Sequence[float]) -> None:
    """Give the constants that are quantized like activations the grid from the smallest to the largest of `limits`."""
    specs = annotation_of(node).input_qspec_map
    for source in _constants(node):
        if isinstance(spec := specs[source], QuantizationSpec):
            specs[source] = on_range(spec, limits)


def _constants(node: Node) -> list[Node]:
    """Return the constants that the node reads and that are quantized, except weights and biases."""
    return [
        source for source in annotation_of(node).input_qspec_map if source.op == "get_attr" and not _has_weight(node)
    ]


def _weight_on_16_bits(node: Node) -> tuple[Node, QuantizationSpec] | None:
    """Return a node's weight and its quantization; None without a weight of 16 bits."""
    weight = node.args[1] if _has_weight(node) else None
    spec = annotation_of(node).input_qspec_map.get(weight) if isinstance(weight, Node) else None
    is_of_16_bits = isinstance(spec, QuantizationSpec) and spec.dtype == torch.int16
    return (weight, spec) if is_of_16_bits else None  # type: ignore[return-value]


def _raise_weight_scales(node: Node, least: float) -> None:
    """Let no step of the weight's grid be smaller than `least`: observers call this number `eps`."""
    specs = annotation_of(node).input_qspec_map
    weight = node.args[1] if _has_weight(node) else None
    if isinstance(weight, Node) and isinstance(spec := specs.get(weight), QuantizationSpec):
        wrapper: Any = spec.observer_or_fake_quant_ctr
        observer = wrapper.p.func.with_args(**wrapper.p.keywords | {"eps": least})
        specs[weight] = replace(spec, observer_or_fake_quant_ctr=observer)


def _fit_bias(node: Node) -> None:
    """Let the largest bias fit the grid of the node's bias.

    With one scale for the whole weight, the largest bias of ExecuTorch's grid has the quantized value 2^31 - 1. PyTorch
    computes it in float32, which rounds it to 2^31, and as an int32 this is -2^31: the bias changes its sign.
    """
    specs = annotation_of(node).input_qspec_map
    for source, spec in specs.items():
        if isinstance(spec, QuantizationSpec) and spec.quant_max == torch.iinfo(torch.int32).max:
            specs[source] = replace(spec, quant_min=-LARGEST_BIAS, quant_max=LARGEST_BIAS)


def _share(node: Node, clamp: Node) -> None:
    """Give the node's result the grid of the clamp that reads it, so that the two observe the same values."""
    spec = result_spec(clamp)
    if spec is None or result_spec(node) is None:
        return
    wrapper: Any = spec.observer_or_fake_quant_ctr
    limits = _limits(clamp)
    observer = _clamping(wrapper.p.func, limits).with_args(**wrapper.p.keywords)
    annotation_of(node).output_qspec = replace(spec, observer_or_fake_quant_ctr=observer)
    annotation_of(clamp).input_qspec_map[node] = SharedQuantizationSpec(node)
    annotation_of(clamp).output_qspec = SharedQuantizationSpec(node)


def _clamping(observer: type[Any], limits: Limits) -> type[Any]:
    """Return a kind of the observer that observes the values after the clamp."""

    class Clamping(observer):  # type: ignore[misc]
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            super().forward(values.clamp(*limits))
            return values

    return Clamping


def _limits(clamp: Node) -> Limits:
    """Return the smallest and the largest result of a clamp; None for a limit that it does not have."""
    kind = operator_type(clamp).rstrip("_")
    if kind in _RELUS:
        return _RELUS[kind]
    arguments = clamp.target._schema.arguments  # type: ignore[union-attr]
    values = {argument.name: argument.default_value for argument in arguments}
    values |= dict(zip((argument.name for argument in arguments), clamp.args, strict=False)) | clamp.kwargs
    smallest, largest = (values.get(name, values.get(f"{name}_val")) for name in ("min", "max"))
    return smallest, largest


def _block_sizes(module: GraphModule, scheme: SchemeConfig) -> dict[str, tuple[int, ...]]:
    """Map node names to block shapes, for the nodes whose number of input channels is a multiple of the block size."""
    nodes = (node for node in module.graph.nodes if node.op == "call_function")
    return {
        node.name: tuple(block)
        for node in nodes
        if (block := scheme.block_size.get(operator_type(node))) is not None and _fits(node, block)
    }


def _fits(node: Node, block: Sequence[int]) -> bool:
    """Return whether the node has a weight whose number of input channels is a multiple of the block size."""
    if not _has_weight(node):
        return False
    shape = node.args[1].meta["val"].shape  # type: ignore[union-attr]
    return len(block) == len(shape) and shape[1] % block[1] == 0


def _has_weight(node: Node) -> bool:
    return node.target in ModuleQConfig().op_axis_dict


def _is_quantized(node: Node) -> bool:
    """Return whether the node's result is quantized or, for an input, whether it can be."""
    return _has_floats(node) if is_input(node) else result_spec(node) is not None


_EFFECTS: tuple[tuple[str, str, Callable[[Node], bool]], ...] = (
    ("quant_dtype", _NOT_QUANTIZED, _is_quantized),
    ("observer", _NOT_QUANTIZED, _is_quantized),
    ("range", _NOT_QUANTIZED, _is_quantized),
    (
        "constant_range",
        "none reads a constant that is quantized like an activation",
        lambda node: bool(_constants(node)),
    ),
    ("least_weight_scale", "none has a weight", _has_weight),
    ("fit_weights", "none has a weight of 16 bits", lambda node: _weight_on_16_bits(node) is not None),
    ("symmetric", _NOT_QUANTIZED, _is_quantized),
    ("per_channel", "none has a weight", _has_weight),
    (
        "share_clamp",
        f"no result is read by a clamp alone; clamps are {', '.join(_CLAMPS)}",
        lambda node: bool(clamp_of(node)),
    ),
    (
        "as_conv2d",
        "none is a linear layer, or a batch norm that no convolution takes in",
        lambda node: operator_type(node) == "linear" or is_written_as_convolution(node),
    ),
)
"""Settings, the reason why they can have no effect, and a function that returns whether they affect an operator."""
