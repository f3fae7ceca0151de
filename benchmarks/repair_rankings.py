"""Rankings of a model's layers by their need for more bits, computed on the host. Runs in a worker.

Both rankings use the graph that pt2e prepares and calibrates. Its observers are either off, so that a value is not
changed, or on, so that the value is rounded to the observer's grid.

- *cumulative* is the ranking of ExecuTorch's `mix_precision_analyzer`: the SNR of each layer's result with all
  observers on, against the float model, as the mean over the samples. The error of a layer contains the errors of all
  layers before it.
- *alone* is phase 1 of AIMET's automatic mixed precision: the SNR of the final outputs with the observers of one
  layer on, and all others off.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
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
_EXACT_DB = 200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The layers of a model, the one with most need for more bits first."""

    nodes: tuple[str, ...]
    snr_db: tuple[float, ...]
    seconds: float


def rankings(
    exported: ExportedMethod, scheme: SchemeConfig, kind: str, layers: Collection[str], store: Store
) -> dict[str, Ranking]:
    """Return the rankings `cumulative` and `alone` of the layers, which are nodes of the exported program."""
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
        return {
            "cumulative": _ranked(prepared_s, lambda: _cumulative(prepared, nodes, samples, floats)),
            "alone": _ranked(prepared_s, lambda: _alone(prepared, nodes, samples, floats)),
        }


def _ranked(prepared_s: float, compute: Any) -> Ranking:
    started = time.perf_counter()
    scores: dict[str, float] = compute()
    nodes = sorted(scores, key=lambda name: scores[name])
    seconds = prepared_s + time.perf_counter() - started
    return Ranking(nodes=tuple(nodes), snr_db=tuple(scores[name] for name in nodes), seconds=seconds)


def _cumulative(
    prepared: GraphModule, nodes: Mapping[str, Node], samples: Samples, floats: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, float]:
    scores: dict[str, list[float]] = defaultdict(list)
    for sample, exact in zip(samples, floats, strict=True):
        rounded = _Run(prepared, frozenset(_observers(prepared))).of(sample)
        for name, node in nodes.items():
            result = next((reader for reader in node.users if _is_observer(prepared, reader)), node).name
            scores[name].append(_snr_db([exact[result]], [rounded[result]]))
    return {name: fmean(values) for name, values in scores.items()}


def _alone(
    prepared: GraphModule, nodes: Mapping[str, Node], samples: Samples, floats: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, float]:
    scores: dict[str, float] = {}
    for name, node in nodes.items():
        around = [other for other in (*node.all_input_nodes, *node.users) if _is_observer(prepared, other)]
        run = _Run(prepared, frozenset(str(other.target) for other in around))
        rounded = [run.of(sample)["output"] for sample in samples]
        scores[name] = _snr_db([exact["output"] for exact in floats], rounded)
    return scores


def _snr_db(exact: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor]) -> float:
    signal = sum(float(value.double().square().sum()) for value in exact)
    noise = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(exact, rounded, strict=True))
    return _EXACT_DB if noise == 0 or signal == 0 else 10 * float(torch.log10(torch.tensor(signal / noise)))


def _names(node: Node) -> set[str]:
    return {node.name, *roots(node.meta.get("from_node", ()))} if node.op == "call_function" else set()


def _is_observer(prepared: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and hasattr(prepared.get_submodule(str(node.target)), "calculate_qparams")


def _observers(prepared: GraphModule) -> Iterator[str]:
    for node in prepared.graph.nodes:
        if _is_observer(prepared, node):
            yield str(node.target)


class _Run(Interpreter):
    """A run of a prepared graph. Only the observers in `on` round their values."""

    def __init__(self, prepared: GraphModule, on: frozenset[str]) -> None:
        super().__init__(prepared, garbage_collect_values=False)
        self._prepared = prepared
        self._on = on

    def of(self, sample: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the value of every node with a tensor, and under `output` all final outputs as one vector."""
        answer = self.run(*sample)
        outputs = answer if isinstance(answer, (tuple, list)) else (answer,)
        values = {node.name: value for node, value in self.env.items() if isinstance(value, torch.Tensor)}
        return values | {"output": torch.cat([output.flatten().float() for output in outputs])}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        observer: Any = self._prepared.get_submodule(str(target))
        if not hasattr(observer, "calculate_qparams"):
            return super().call_module(target, args, kwargs)
        (value,) = args
        return _rounded(value, observer) if str(target) in self._on else value


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
