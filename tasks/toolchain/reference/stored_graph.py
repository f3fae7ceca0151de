"""Reference graphs in blobs: the calls as JSON, the constants and the values of operators as safetensors."""

import importlib
import json
from collections.abc import Iterable, Sequence

import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob, LoweredMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.nodes import GETITEM
from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph, overload
from qnnsweep.tasks.toolchain.tensors import put_tensors, read_tensors


def put_values(
    store: Store, graph: ReferenceGraph, samples: Iterable[tuple[int, Sequence[torch.Tensor]]]
) -> tuple[Blob, ...]:
    """Store the values of the operators, except those of constants. Return one blob per sample.

    `samples`: numbers and inputs. A value has the key `<sample>/<operator index>`. Only the values of one sample are in
    memory at a time.
    """
    with torch.no_grad():
        return tuple(
            put_tensors(store, {tensor_key(sample, index): value for index, value in graph.tensors(inputs).items()})
            for sample, inputs in samples
        )


def put_graph(store: Store, graph: ReferenceGraph) -> tuple[Blob, Blob]:
    """Store the calls as JSON and the constants as safetensors."""
    written = {
        "calls": [[call.target, call.arguments, call.keywords, call.dtype] for call in graph.calls],
        "outputs": graph.outputs,
    }
    return store.put_bytes(json.dumps(written).encode()), put_tensors(store, graph.constants)


def read_graph(store: Store, calls: Blob, constants: Blob) -> ReferenceGraph:
    """Return the graph that `put_graph` stored. Raises EvidenceError if the blobs contain anything else."""
    try:
        written = json.loads(store.read(calls))
        graph_calls = [
            Call(target=target, arguments=tuple(arguments), keywords=keywords, dtype=dtype)
            for target, arguments, keywords, dtype in written["calls"]
        ]
        outputs = list(written["outputs"])
    except (ValueError, TypeError, KeyError) as error:
        raise EvidenceError(f"blob {calls.sha256} is no reference graph: {error}") from error
    if any(overload(target) is None for target in {call.target for call in graph_calls} - {GETITEM}):
        importlib.import_module("qnnsweep.tasks.toolchain.imports")  # ExecuTorch registers operators of its own
    return ReferenceGraph(graph_calls, outputs, read_tensors(store, constants))


def device_graph(lowered: LoweredMethod, store: Store) -> ReferenceGraph:
    """Return the stored graph of a method, with the constants as the device reads them."""
    graph = read_graph(store, lowered.reference_calls, lowered.reference_constants)
    return graph.as_read(lowered.design)
