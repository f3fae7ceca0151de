"""The removal, change and insertion of the quantize/dequantize pairs of a converted graph. Runs in workers.

The kind of a pair is `<producer> > <consumers>`. A pair between a convolution or linear layer and a clamp is
called fused: QNN's compiler merges the clamp into the preceding operator, so that no value is rounded at the pair.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.records import Blob, ExportedMethod, QuantizedMethod, QuantizedModel
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.quantize import load_program
from qnnsweep.tasks.toolchain.tensors import outputs_by_sample, put_tensors, read_samples, read_tensors

QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default
DEQUANTIZE = torch.ops.quantized_decomposed.dequantize_per_tensor.default
DEQUANTIZE_WEIGHT = torch.ops.quantized_decomposed.dequantize_per_channel.default
PRODUCERS = ("conv2d", "linear")
CLAMPS = ("hardtanh", "relu")
INT32 = torch.iinfo(torch.int32)

Samples = Sequence[tuple[torch.Tensor, ...]]
Scores = list[float | None]
"""Per sample, the SNR in dB of the worst output; None if that output equals the reference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The effect of one fused pair on a graph without any other pair, and the resolution of the pair."""

    module_path: str
    scale: float
    levels: float
    """The number of quantized values between the limits of the following clamp."""
    snr_db: Scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """The scores of the outputs against eager PyTorch, for each set of removed pairs."""

    counts: dict[str, int]
    without: dict[str, Scores]
    only: dict[str, Scores]
    graphs: dict[str, Scores]
    pairs: tuple[Pair, ...]
    """The pairs, worst first."""
    outputs: dict[str, Blob]
    """The final outputs of some of `graphs`, as safetensors with keys `<sample>/<output index>`."""


def ablate(quantized: QuantizedMethod, store: Store) -> Ablation:
    make_deterministic()
    exported = quantized.exported
    samples = _evaluation(exported, store)
    eager = read_tensors(store, exported.outputs_eager)
    base = _converted(quantized, store)
    kinds = pair_kinds(base)
    every = {name for names in kinds.values() for name in names}
    fused = fused_names(base)
    folded = _folded(exported, store)

    def scores(module: GraphModule) -> Scores:
        return _snr(_outputs(module, samples), eager)

    graphs = {
        "exported": load_program(store, exported.program).module(),
        "batch norms folded": folded,
        "converted": base,
        "without fused pairs": without(base, fused),
        "without any pair": without(base, every),
        "fused pairs saturate only": _changed(base, fused, _saturate),
        "fused pairs round only": _changed(base, fused, _round),
        "float weights": with_float_parameters(base, folded),
        "float weights, without fused pairs": with_float_parameters(without(base, fused), folded),
        "fused pairs alone, float weights": with_float_parameters(without(base, every - fused), folded),
    }
    pairs = {name: _pair(base, name, scores(without(base, every - {name}))) for name in sorted(fused)}
    worst = sorted(pairs, key=lambda name: median(pairs[name].snr_db))[:3]
    graphs["without the three worst fused pairs"] = without(base, worst)
    outputs = {name: _outputs(module, samples) for name, module in graphs.items()}
    return Ablation(
        counts={kind: len(names) for kind, names in kinds.items()},
        without={kind: scores(without(base, names)) for kind, names in kinds.items()},
        only={kind: scores(without(base, every - names)) for kind, names in kinds.items()},
        graphs={name: _snr(values, eager) for name, values in outputs.items()},
        pairs=tuple(sorted(pairs.values(), key=lambda pair: median(pair.snr_db))),
        outputs={
            name: put_tensors(store, outputs[name]) for name in ("converted", "without fused pairs", "without any pair")
        },
    )


def variant(quantized: QuantizedModel, name: str, store: Store) -> QuantizedModel:
    return with_graph(quantized, VARIANTS[name], store)


def with_graph(quantized: QuantizedModel, change: Callable[[GraphModule], GraphModule], store: Store) -> QuantizedModel:
    """Return the model with a changed converted graph, which can be lowered and executed like any other."""
    make_deterministic()
    (method,) = quantized.methods
    samples = _evaluation(method.exported, store)
    module = change(_converted(method, store))
    torch.export.save(torch.export.export(module, samples[0], strict=True), "program.pt2")
    changed = replace(
        method,
        program=store.put_file(Path("program.pt2")),
        outputs_quantized=put_tensors(store, _outputs(module, samples)),
    )
    return replace(quantized, methods=(changed,))


def median(scores: Scores) -> float:
    return statistics.median(math.inf if score is None else score for score in scores)


def pair_kinds(module: GraphModule) -> dict[str, set[str]]:
    """Return the names of the quantize nodes of activations, by kind."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for node in _quantizes(module):
        consumers = sorted({_kind(user) for dequantize in node.users for user in dequantize.users})
        kinds[f"{_kind(_source(node))} > {' + '.join(consumers)}"].add(node.name)
    return dict(kinds)


def fused_names(module: GraphModule) -> set[str]:
    """Return the names of quantize nodes between a convolution or linear layer and consumers that are all clamps."""
    return {
        node.name
        for node in _quantizes(module)
        if _kind(_source(node)) in PRODUCERS
        and all(_kind(user) in CLAMPS for dequantize in node.users for user in dequantize.users)
    }


def without(module: GraphModule, names: Collection[str]) -> GraphModule:
    """Return a copy in which values bypass the named pairs."""
    return _changed(module, names, lambda _graph, node, dequantize: dequantize.replace_all_uses_with(node.args[0]))


def with_float_parameters(module: GraphModule, folded: GraphModule) -> GraphModule:
    """Return a copy with the weights and biases of `folded`, which has the same layers without quantization."""
    changed = copy.deepcopy(module)
    layers = zip(_layers(changed), _layers(folded), strict=True)
    for number, (layer, twin) in enumerate(layers):
        for position in (1, 2):
            value = _parameter(folded, twin.args[position])
            name = f"float_{number}_{position}"
            changed.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
            with changed.graph.inserting_before(layer):
                layer.update_arg(position, changed.graph.get_attr(name))
    return _recompiled(changed)


def _parameter(module: GraphModule, node: Node) -> torch.Tensor:
    value = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor)
    return value.detach()


def _unfused(module: GraphModule) -> GraphModule:
    """Insert two negations, each on the same grid as before, between every fused pair and its clamp."""

    def negated(graph: torch.fx.Graph, _node: Node, dequantize: Node) -> None:
        (clamp,) = dequantize.users
        scale, zero_point, low, high, dtype = dequantize.args[1:]
        value = dequantize
        with graph.inserting_before(clamp):
            for point in (high - zero_point + low, zero_point):
                qparams = (scale, point, low, high, dtype)
                value = graph.call_function(torch.ops.aten.neg.default, (value,))
                value = graph.call_function(QUANTIZE, (value, *qparams))
                value = graph.call_function(DEQUANTIZE, (value, *qparams))
        clamp.replace_input_with(dequantize, value)

    return _changed(module, fused_names(module), negated)


def _clamped_grid(module: GraphModule) -> GraphModule:
    """Give every fused pair the grid of the following clamp's output, so that its saturation has the clamp's effect."""

    def regrid(_graph: torch.fx.Graph, node: Node, dequantize: Node) -> None:
        (clamp,) = dequantize.users
        (after,) = clamp.users
        node.args = (node.args[0], *after.args[1:])
        dequantize.args = (node, *after.args[1:])

    return _changed(module, fused_names(module), regrid)


def _halved_biases(module: GraphModule) -> GraphModule:
    """Clamp the quantized biases at half of the int32 minimum. This halves the biases that were saturated."""
    changed = copy.deepcopy(module)
    for layer in _layers(changed):
        bias = layer.args[2]
        if isinstance(bias, Node) and bias.target is DEQUANTIZE_WEIGHT:
            _parameter(changed, bias.args[0]).clamp_(min=INT32.min // 2)
    return changed


VARIANTS: dict[str, Callable[[GraphModule], GraphModule]] = {
    "fusion prevented": _unfused,
    "clamp's grid": _clamped_grid,
    "saturated biases halved": _halved_biases,
}


def _changed(
    module: GraphModule, names: Collection[str], change: Callable[[torch.fx.Graph, Node, Node], object]
) -> GraphModule:
    """Return a copy, after calls of `change` with each named quantize node and each of its dequantize nodes."""
    changed = copy.deepcopy(module)
    for node in [node for node in _quantizes(changed) if node.name in names]:
        for dequantize in list(node.users):
            change(changed.graph, node, dequantize)
    return _recompiled(changed)


def _recompiled(module: GraphModule) -> GraphModule:
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


def _saturate(graph: torch.fx.Graph, node: Node, dequantize: Node) -> None:
    scale, zero_point, low, high = node.args[1:5]
    with graph.inserting_before(dequantize):
        ends = ((low - zero_point) * scale, (high - zero_point) * scale)
        clamped = graph.call_function(torch.ops.aten.clamp.default, (node.args[0], *ends))
    dequantize.replace_all_uses_with(clamped)


def _round(_graph: torch.fx.Graph, node: Node, dequantize: Node) -> None:
    qparams = (*node.args[1:3], INT32.min, INT32.max, torch.int32)
    node.args = (node.args[0], *qparams)
    dequantize.args = (node, *qparams)


def _pair(module: GraphModule, name: str, snr_db: Scores) -> Pair:
    (node,) = [node for node in _quantizes(module) if node.name == name]
    (dequantize,) = node.users
    (clamp,) = dequantize.users
    scale, zero_point, low, high = node.args[1:5]
    floor, ceiling = clamp.args[1:] if _kind(clamp) == "hardtanh" else (0.0, math.inf)
    ends = max(floor, (low - zero_point) * scale), min(ceiling, (high - zero_point) * scale)
    path = list(_source(node).meta["nn_module_stack"].values())[-1][0]
    return Pair(module_path=path, scale=scale, levels=(ends[1] - ends[0]) / scale + 1, snr_db=snr_db)


def _quantizes(module: GraphModule) -> Iterator[Node]:
    return (node for node in module.graph.nodes if node.target is QUANTIZE)


def _layers(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "call_function" and _kind(node) in PRODUCERS]


def _source(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _kind(node: Node) -> str:
    return str(node.target).split(".")[-2] if node.op == "call_function" else node.op


def _converted(quantized: QuantizedMethod, store: Store) -> GraphModule:
    return load_program(store, quantized.program).module()


class _FoldOnly(Quantizer):
    """A quantizer that annotates nothing, so that `prepare_pt2e` only folds batch norms."""

    def annotate(self, model: GraphModule) -> GraphModule:
        return model

    def validate(self, model: GraphModule) -> None:
        pass


def _folded(exported: ExportedMethod, store: Store) -> GraphModule:
    return prepare_pt2e(load_program(store, exported.program).module(), _FoldOnly())


def _evaluation(exported: ExportedMethod, store: Store) -> Samples:
    names = [spec.name for spec in exported.inputs]
    return read_samples(store, exported.evaluation, names, len(exported.sample_names))


def _outputs(module: GraphModule, samples: Samples) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return outputs_by_sample([module(*sample) for sample in samples])


def _snr(outputs: dict[str, torch.Tensor], eager: dict[str, torch.Tensor]) -> Scores:
    by_sample: dict[int, list[float]] = defaultdict(list)
    for key, reference in eager.items():
        ratio = snr_db(outputs[key].numpy(), reference.numpy())
        by_sample[int(key.partition("/")[0])] += [] if ratio is None else [ratio]
    return [min(by_sample[sample], default=None) for sample in sorted(by_sample)]
