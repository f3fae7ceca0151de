"""Rankings of a model's layers by their need for more bits, computed on the host. Runs in a worker.

The rankings use the graph that pt2e prepares and calibrates. Its observers are either off, so that a value is not
changed, or on, so that the value is rounded to the observer's grid.

- *cumulative* is the ranking of ExecuTorch's `mix_precision_analyzer`: the SNR of each layer's result with all
  observers on, against the float model, as the mean over the samples. The error of a layer contains the errors of all
  layers before it.
- *alone* is phase 1 of AIMET's automatic mixed precision: the SNR of the final outputs with the observers of one
  layer on, and all others off.
- *kl* is the score `kl_div` of NVIDIA ModelOpt's AutoQuantize: the Kullback-Leibler divergence from the softmax of the
  float model's outputs to that of the outputs with the observers of one layer on.
- *gradient* is the score `gradient` of the same: the sum of (dL/dY)² (Y_quantized - Y)² over the result Y of one layer
  with its observers on. L is the loss. Nobody has given labels: for a classifier, L is the cross entropy with the float
  model's own class; for another model it is half the squared distance to the float model's outputs with unit noise,
  whose squared gradient is that of Fisher's information for normal errors.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import ExportedMethod
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.overridden import roots
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import read_samples

Samples = Sequence[tuple[torch.Tensor, ...]]
Runs = Sequence["_Values"]
_EXACT_DB = 200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The layers of a model, the one with most need for more bits first."""

    nodes: tuple[str, ...]
    seconds: float


def rankings(
    exported: ExportedMethod, scheme: SchemeConfig, kind: str, layers: Collection[str], store: Store, classifier: bool
) -> dict[str, Ranking]:
    """Return the four rankings of the layers, which are nodes of the exported program."""
    make_deterministic()
    names = [spec.name for spec in exported.inputs]
    samples = read_samples(store, exported.evaluation, names, len(exported.sample_names))
    with torch.no_grad():
        started = time.perf_counter()
        module = load_program(store, exported.program).module()
        prepared = prepare_pt2e(module, backend_of(kind).compiler(scheme, None).quantizer(scheme, module))
        assert exported.calibration is not None
        for sample in read_samples(store, exported.calibration, names, exported.calibration_samples):
            prepared(*sample)
        nodes = {name: node for node in prepared.graph.nodes for name in _names(node) if name in layers}
        prepared_s = time.perf_counter() - started
        floats = [_Run(prepared, frozenset()).of(sample) for sample in samples]
        given = prepared, nodes, samples, floats
        return {
            "cumulative": _ranked(prepared_s, lambda: _cumulative(*given)),
            "alone": _ranked(prepared_s, lambda: _alone(*given)),
            "kl": _ranked(prepared_s, lambda: _divergence(*given)),
            "gradient": _ranked(prepared_s, lambda: _gradient(*given, classifier=classifier)),
        }


def _ranked(prepared_s: float, compute: Any) -> Ranking:
    started = time.perf_counter()
    scores: dict[str, float] = compute()
    nodes = sorted(scores, key=lambda name: scores[name])
    return Ranking(nodes=tuple(nodes), seconds=prepared_s + time.perf_counter() - started)


def _cumulative(prepared: GraphModule, nodes: Mapping[str, Node], samples: Samples, floats: Runs) -> dict[str, float]:
    scores: dict[str, list[float]] = defaultdict(list)
    run = _Run(prepared, frozenset(_observers(prepared)))
    for sample, exact in zip(samples, floats, strict=True):
        rounded = run.of(sample)
        for name, node in nodes.items():
            result = _result(prepared, node).name
            scores[name].append(_snr_db([exact.values[result]], [rounded.values[result]]))
    return {name: fmean(values) for name, values in scores.items()}


def _alone(prepared: GraphModule, nodes: Mapping[str, Node], samples: Samples, floats: Runs) -> dict[str, float]:
    exact = [output for run in floats for output in run.outputs]
    return {
        name: _snr_db(exact, [output for sample in samples for output in _with_one(prepared, node).of(sample).outputs])
        for name, node in nodes.items()
    }


def _divergence(prepared: GraphModule, nodes: Mapping[str, Node], samples: Samples, floats: Runs) -> dict[str, float]:
    return {
        name: -sum(
            float(kl_div(log_softmax(rounded, -1), log_softmax(exact, -1), reduction="sum", log_target=True))
            for sample, run in zip(samples, floats, strict=True)
            for rounded, exact in zip(_with_one(prepared, node).of(sample).outputs, run.outputs, strict=True)
        )
        for name, node in nodes.items()
    }


def _gradient(
    prepared: GraphModule, nodes: Mapping[str, Node], samples: Samples, floats: Runs, *, classifier: bool
) -> dict[str, float]:
    noise = torch.Generator().manual_seed(0)
    scores = dict.fromkeys(nodes, 0.0)
    for sample, exact in zip(samples, floats, strict=True):
        with torch.enable_grad():
            run = _Run(prepared, frozenset(), watched=frozenset(node.name for node in nodes.values())).of(sample)
            losses = [
                cross_entropy(output.flatten(0, -2), output.argmax(-1).flatten())
                if classifier
                else (output * torch.randn(output.shape, generator=noise)).sum()
                for output in run.outputs
            ]
            torch.stack(losses).sum().backward()
        for name, node in nodes.items():
            slope = run.values[node.name].grad
            rounded = _with_one(prepared, node).of(sample).values[_result(prepared, node).name]
            if slope is not None:  # None: no output depends on it
                change = rounded.double() - exact.values[node.name].double()
                scores[name] -= float((slope.double() * change).square().sum())
    return scores


def _snr_db(exact: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor]) -> float:
    signal = sum(float(value.double().square().sum()) for value in exact)
    noise = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(exact, rounded, strict=True))
    return _EXACT_DB if noise == 0 or signal == 0 else 10 * math.log10(signal / noise)


def _names(node: Node) -> set[str]:
    return {node.name, *roots(node.meta.get("from_node", ()))} if node.op == "call_function" else set()


def _is_observer(prepared: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and hasattr(prepared.get_submodule(str(node.target)), "calculate_qparams")


def _observers(prepared: GraphModule) -> Iterator[str]:
    for node in prepared.graph.nodes:
        if _is_observer(prepared, node):
            yield str(node.target)


def _result(prepared: GraphModule, node: Node) -> Node:
    """Return the observer of a node's result; the node itself if its result has none."""
    return next((reader for reader in node.users if _is_observer(prepared, reader)), node)


class _Values(NamedTuple):
    """What a run computes: the value of every node with a tensor, and the final outputs."""

    values: dict[str, torch.Tensor]
    outputs: list[torch.Tensor]


class _Run(Interpreter):
    """A run of a prepared graph. Only the observers in `on` round their values. `watched` nodes keep their gradient."""

    def __init__(self, prepared: GraphModule, on: frozenset[str], watched: frozenset[str] = frozenset()) -> None:
        super().__init__(prepared, garbage_collect_values=False)
        self._prepared = prepared
        self._on = on
        self._watched = watched

    def of(self, sample: Sequence[torch.Tensor]) -> _Values:
        outputs = tree_leaves(self.run(*sample))
        values = {node.name: value for node, value in self.env.items() if isinstance(value, torch.Tensor)}
        return _Values(values, [output.float() for output in outputs])

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.name in self._watched and value.is_floating_point():
            value = value if value.requires_grad else value.detach().requires_grad_()
            value.retain_grad()
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a function. A function that would change its first operand gets a copy of it."""
        if isinstance(target, OpOverload) and target._schema.is_mutable:
            args = (args[0].clone(), *args[1:])
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        observer: Any = self._prepared.get_submodule(str(target))
        if not hasattr(observer, "calculate_qparams"):
            return super().call_module(target, args, kwargs)
        (value,) = args
        return _rounded(value, observer) if str(target) in self._on else value


def _with_one(prepared: GraphModule, node: Node) -> _Run:
    """Return the run in which only the operands and the result of one node are rounded."""
    around = [other for other in (*node.all_input_nodes, *node.users) if _is_observer(prepared, other)]
    return _Run(prepared, frozenset(str(other.target) for other in around))


def _rounded(value: torch.Tensor, observer: Any) -> torch.Tensor:
    """Return the value as it is after it was quantized and dequantized."""
    if not value.is_floating_point():
        return value
    scale, zero_point = (parameter.detach().double() for parameter in observer.calculate_qparams())
    if scale.numel() > 1:
        shape = [1] * value.ndim
        shape[observer.ch_axis] = -1
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    info = torch.iinfo(observer.dtype)
    least = info.min if observer.quant_min is None else observer.quant_min
    most = info.max if observer.quant_max is None else observer.quant_max
    codes = torch.clamp(torch.round(value.double() / scale) + zero_point, least, most)
    return ((codes - zero_point) * scale).to(value.dtype)
