"""What the tests ask of the reference graph in a worker process: this process never imports ExecuTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import Blob, LoweredProgram
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import with_method

Array = NDArray[Any]

KEEPS_ONE_DEAD = "aten_split_with_sizes_copy_default"


def _model() -> Any:
    """Three inputs, of which the third is read first; floats, integers and booleans; tuples; several outputs."""
    import torch

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.register_buffer("bias", torch.arange(8.0))

        def forward(self, x: Any, positions: Any, mask: Any) -> Any:
            masked = torch.where(mask, x, torch.full_like(x, -float("inf")))
            best, order = torch.topk(masked, 3, dim=-1)
            first, _, last = torch.split(torch.relu(self.linear(x)) + self.bias, [2, 4, 2], dim=-1)
            gathered = torch.gather(x, 1, positions)
            wide = positions.to(torch.float32) * 0.5
            return {"order": order, "sum": first * last + gathered, "best": best, "mask": mask & (x > 0), "wide": wide}

    torch.manual_seed(0)
    return Mixed().eval()


def _inputs() -> tuple[Any, ...]:
    import torch

    torch.manual_seed(1)
    mask = torch.tensor([[True, False, True, True, False, True, True, True]] * 2)
    return torch.randn(2, 8), torch.tensor([[0, 5], [7, 7]]), mask


def _edge() -> Any:
    import torch
    from executorch.exir import to_edge

    return to_edge(torch.export.export(_model(), _inputs(), strict=True)).exported_program()


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> list[str]:
    import torch

    compared = []
    for our, their in zip(ours, theirs, strict=True):
        equal = our.dtype == their.dtype and torch.equal(our, their)
        compared.append(f"{str(our.dtype).removeprefix('torch.')}{list(our.shape)} {'same' if equal else 'differs'}")
    return compared


def run_mixed(store: Store) -> dict[str, Any]:
    """The graph of the model above, there and back again, against the edge program's own run of it."""
    import torch
    from torch.utils._pytree import tree_leaves

    from qnnsweep.tasks.toolchain.reference.graph import graph_of
    from qnnsweep.tasks.toolchain.reference.operators import operator_table
    from qnnsweep.tasks.toolchain.reference.stored_graph import put_graph, read_graph

    edge, inputs = _edge(), _inputs()
    graph = graph_of(edge)
    with torch.no_grad():
        theirs = tree_leaves(edge.module()(*inputs))
        values: dict[int, Any] = {}
        ours = graph.walk(inputs, change=lambda index, value: values.setdefault(index, value))
        blobs = put_graph(store, graph)
        back = read_graph(store, *blobs)
        again = back.walk(inputs)
    table = operator_table(edge)
    return {
        "outputs": _same(ours, theirs),
        "again": _same(again, theirs),
        "round trip": (back.calls == graph.calls, back.outputs == graph.outputs, put_graph(store, back) == blobs),
        "structure": (back.sources, back.output_calls, back.constant_calls)
        == (graph.sources, graph.output_calls, graph.constant_calls),
        "blobs": blobs,
        "targets": [call.target for call in graph.calls],
        "names": [row.name for row in table if not row.unused],
        "table": [(row.shape, row.dtype) for row in table if not row.unused],
        "values": [
            (tuple(value.shape), str(value.dtype).removeprefix("torch.")) if isinstance(value, torch.Tensor) else None
            for value in (values[index] for index in range(len(graph.calls)))
        ],
        "constant": [table[index].name for index in graph.constant_calls],
        "sources": {
            row.name: [table[index].name for index in graph.sources[row.index]] for row in table if not row.unused
        },
        "leaving": [table[index].name for index in sorted(graph.output_calls)],
        "unused": [row.name for row in table if row.unused],
    }


def run_lowered(lowered: LoweredProgram, sample: int, store: Store) -> dict[str, Any]:
    """Compare the stored graph on one evaluation sample with the values that the lowering stored."""
    import torch

    from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph
    from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

    exported = lowered.quantized.exported
    names = [spec.name for spec in exported.methods[0].inputs]
    inputs = read_samples(store, exported.methods[0].evaluation, names, sample + 1)[sample]
    graph = read_graph(store, lowered.methods[0].reference_calls, lowered.methods[0].reference_constants)
    with torch.no_grad():
        answer, values = graph.walk(inputs), graph.tensors(inputs)
    stored = {key: value for blob in lowered.methods[0].reference for key, value in read_tensors(store, blob).items()}
    numbers = [int(key.partition("/")[2]) for key in stored if key.startswith(f"{sample}/")]
    return {
        "operators": sorted(numbers),
        "differing": [number for number in numbers if not torch.equal(values[number], stored[f"{sample}/{number}"])],
        "outputs": _same(answer, [read_tensors(store, lowered.methods[0].outputs_edge)[f"{sample}/0"]]),
        "constants": graph.constant_calls,
        "leaving": sorted(graph.output_calls),
    }


def run_edge_program(lowered: LoweredProgram, store: Store) -> list[str]:
    """Compare the stored graph with the edge program, converted again from the quantized one, on every sample."""
    import torch
    from torch.utils._pytree import tree_leaves

    from qnnsweep.conf.load import load
    from qnnsweep.tasks.toolchain.backends.select import backend_of
    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.edge import edge_program
    from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph
    from qnnsweep.tasks.toolchain.saved_program import load_program
    from qnnsweep.tasks.toolchain.tensors import read_samples

    make_deterministic()
    ask = load(["scheme=8a8w", "soc=SM8650"]).cells[0].request
    compiler = backend_of(ask.backend.kind).compiler(ask.scheme, None)
    module = (
        edge_program(compiler, load_program(store, lowered.quantized.methods[0].program)).exported_program().module()
    )
    graph = read_graph(store, lowered.methods[0].reference_calls, lowered.methods[0].reference_constants)
    exported = lowered.quantized.exported
    samples = read_samples(store, exported.methods[0].evaluation, [spec.name for spec in exported.methods[0].inputs], 8)
    with torch.no_grad():
        pairs = [(graph.walk(sample), tree_leaves(module(*sample))) for sample in samples]
    return [line for ours, theirs in pairs for line in _same(ours, theirs)]


def call(target: str, arguments: Sequence[Any], inputs: Sequence[Array], dtype: str | None = None) -> Any:
    """Return the value of one call of a graph as NumPy, or the message of `NoKernel` if it has none."""
    import torch

    from qnnsweep.tasks.toolchain.reference.graph import Call, NoKernel, ReferenceGraph

    graph = ReferenceGraph([Call(target=target, arguments=tuple(arguments), keywords={}, dtype=dtype)], [], {})
    try:
        value = graph.call(0, {}, [torch.from_numpy(array) for array in inputs])
    except NoKernel as error:
        return str(error)
    return value.numpy()


def read(calls: Blob, constants: Blob, store: Store) -> None:
    from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph

    read_graph(store, calls, constants)


def kernels_of(name: str, inputs: Sequence[Array]) -> Any:
    """HostKernels over a small exported module."""
    import torch
    from executorch.exir import to_edge

    from qnnsweep.tasks.toolchain.reference.graph import graph_of
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

    torch.manual_seed(0)
    tensors = tuple(torch.from_numpy(np.array(array)) for array in inputs)
    program = torch.export.export(_MODULES[name](), tensors, strict=True)
    return HostKernels(graph_of(to_edge(program).exported_program()), inputs)


class _Modules(dict[str, Any]):
    """Modules that are created on demand: this file is imported by processes that never load torch."""

    def __missing__(self, name: str) -> Any:
        import torch

        class Of(torch.nn.Module):
            def __init__(self, forward: Any) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 0.0]))
                self._forward = forward

            def forward(self, *inputs: Any) -> Any:
                return self._forward(self.weight, *inputs)

        forwards = {
            "relu6": lambda weight, x: torch.nn.functional.relu6(x * weight) + 1,
            "pool": lambda weight, x: torch.nn.functional.max_pool2d(x, 2) * 2,
            "topk": lambda weight, x: torch.topk(x, 2)[1],
            "mixed": lambda weight, x, positions: torch.gather(torch.sigmoid(x), 0, positions) + weight.exp()[0],
            "heads": lambda weight, x: (x.view(2, 2).permute(1, 0) + 1, x > 0, x.to(torch.int64)),
            "split": lambda weight, x: torch.split(x * 2, 2)[1] * 3,
            "sum": lambda weight, x: (x * 2).sum(0, keepdim=True) + weight,
        }
        return lambda: Of(forwards[name]).eval()


_MODULES = _Modules()


def facts(name: str, inputs: Sequence[Array]) -> dict[str, Any]:
    kernels = kernels_of(name, inputs)
    targets = [call.target.split(".")[1] if "." in call.target else call.target for call in kernels._graph.calls]

    def targets_of(indices: Any) -> list[str]:
        return [targets[index] for index in sorted(indices)]

    return {
        "targets": targets,
        "sources": [tuple(sources) for sources in kernels.sources],
        "outputs": targets_of(kernels.outputs),
        "constants": targets_of(kernels.constants),
        "data_movement_ops": targets_of(kernels.data_movement_ops),
        "linear": targets_of(kernels.linear),
        "getitem_index": {targets[index]: position for index, position in kernels.getitem_index.items()},
    }


def run(name: str, inputs: Sequence[Array]) -> tuple[list[Any], list[Array], Mapping[int, str]]:
    """Every call's value one after the other, the answers, and what was refused."""
    kernels = kernels_of(name, inputs)
    values: dict[int, Any] = {}
    for index in range(len(kernels.sources)):
        values[index] = kernels.call(index, values)
    return [values[index] for index in sorted(values)], kernels.answer(values), kernels.refusals


def gradient(
    name: str, inputs: Sequence[Array], index: int, source: int, value: Array, weights: Sequence[Array | None]
) -> Array | None:
    """By the elements of `source` of the weighted outputs of `index`, where `source` is `value`."""
    kernels = kernels_of(name, inputs)
    values: dict[int, Any] = {}
    for number in range(index):
        values[number] = value if number == source else kernels.call(number, values)
    return kernels.gradient(index, source, values, lambda _: weights)


def call_without_sources(name: str, inputs: Sequence[Array], index: int) -> tuple[Any, Mapping[int, str]]:
    kernels = kernels_of(name, inputs)
    return kernels.call(index, {}), kernels.refusals


def bfloat16(inputs: Sequence[Array]) -> Any:
    """A graph that computes in bfloat16, which NumPy has no type for."""
    import torch
    from executorch.exir import to_edge

    from qnnsweep.tasks.toolchain.reference.graph import graph_of
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

    class Half(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x.to(torch.bfloat16) * 2).to(torch.float32)

    program = torch.export.export(Half(), tuple(torch.from_numpy(array) for array in inputs), strict=True)
    kernels = HostKernels(graph_of(to_edge(program).exported_program()), inputs)
    values: dict[int, Any] = {}
    for index in range(len(kernels.sources)):
        values[index] = kernels.call(index, values)
    return [value.dtype.name for value in values.values()]


def designed(lowered: LoweredProgram, store: Store) -> dict[str, Array] | str:
    """Compute the outputs of the rung `designed` from the record of a lowering, with the grids of its operators."""
    from qnnsweep.tasks.toolchain.backends.select import backend_of
    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.reference.designed import design_of, designed_outputs
    from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph
    from qnnsweep.tasks.toolchain.tensors import outputs_by_sample, read_samples

    make_deterministic()
    exported = lowered.quantized.exported
    graph = read_graph(store, lowered.methods[0].reference_calls, lowered.methods[0].reference_constants)
    names = [spec.name for spec in exported.methods[0].inputs]
    samples = read_samples(store, exported.methods[0].evaluation, names, len(exported.methods[0].sample_names))
    method, scheme = lowered.methods[0], SchemeConfig(name="8a8w", quant_dtype="8a8w")
    compiler = backend_of(lowered.backend).compiler(scheme, None)
    subgraphs = {operator.index: operator.subgraph for operator in method.operators}
    given = graph, method.operators, method.input_qparams, exported.methods[0].inputs
    design = design_of(*given, compiler, subgraphs)
    answers = designed_outputs(graph, method.operators, method.input_qparams, design, samples)
    if isinstance(answers, str):
        return answers
    return {key: output.numpy() for key, output in outputs_by_sample(answers).items()}


def designed_by_kernels(lowered: LoweredProgram, store: Store) -> dict[str, Array]:
    """Compute the outputs of the rung `designed` with the kernels of the replay and with NumPy's rounding."""
    from safetensors.numpy import load

    from qnnsweep.tasks.numerics.dequantize import fake_quantize
    from qnnsweep.tasks.toolchain.entrypoints import reference_kernels

    exported, kernels_on = lowered.quantized.exported, reference_kernels(lowered.methods[0], store)
    evaluation = load(store.read(exported.methods[0].evaluation))
    outputs: dict[str, Array] = {}
    for sample in range(len(exported.methods[0].sample_names)):
        (spec,), (qparams,) = exported.methods[0].inputs, lowered.methods[0].input_qparams
        assert qparams is not None
        kernels = kernels_on([fake_quantize(evaluation[f"{sample}/{spec.name}"], qparams).astype(np.float32)])
        values: dict[int, Any] = {}
        for index in range(len(kernels.sources)):
            value, operator = kernels.call(index, values), lowered.methods[0].operators[index]
            unrounded = index in kernels.constants or index in kernels.clamped
            if isinstance(value, np.ndarray) and operator.quantization is not None and not unrounded:
                value = fake_quantize(value, operator.quantization).astype(value.dtype)
            values[index] = value
        outputs |= {f"{sample}/{index}": output for index, output in enumerate(kernels.answer(values))}
    return outputs


def with_other_target(lowered: LoweredProgram, index: int, target: str, store: Store) -> LoweredProgram:
    """Return the lowering with another function in the call of one operator."""
    graph = json.loads(store.read(lowered.methods[0].reference_calls))
    graph["calls"][index][0] = target
    return with_method(lowered, reference_calls=store.put_bytes(json.dumps(graph).encode()))
