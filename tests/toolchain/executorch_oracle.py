"""What tests ask of ExecuTorch itself, as its documentation has it: what is ours is compared with it.

Imported in workers: the tests' own process never loads ExecuTorch.
"""

from __future__ import annotations

from typing import Any

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import Blob, ProgramFacts, Quantization, QuantizedModel
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store


def lower_officially(quantized: QuantizedModel, scheme: SchemeConfig, soc: SocConfig, store: Store) -> Blob:
    """The `.pte` that `to_edge_transform_and_lower_to_qnn` gives for the same graph."""
    import official_path

    from qnnsweep.tasks.toolchain.saved_program import load_program

    module = load_program(store, quantized.methods[0].program).module()
    return official_path.lower(quantized.methods[0].exported, module, scheme, soc, store).program


def read_etrecord(blob: Blob, store: Store) -> dict[str, Any]:
    """Return what ExecuTorch's Inspector reads from an ETRecord: the calls of its reference graph, and its maps."""
    from executorch.devtools.etrecord import parse_etrecord

    record = parse_etrecord(str(store.path(blob)))
    graphs = record.graph_map or {}
    # A saved graph names every member of a tuple, used or not.
    nodes = [node for node in graphs[f"edge_after_transform/{METHOD}"].graph.nodes if "_unused_" not in node.name]
    return {
        "graphs": sorted(graphs),
        "calls": [
            (node.name, getattr(node.target, "__name__", ""), node.meta["debug_handle"], node.meta.get("stack_trace"))
            for node in nodes
            if node.op == "call_function"
        ],
        "shapes": {
            node.name: tuple(node.meta["val"].shape)
            for node in nodes
            if node.op == "call_function" and not isinstance(node.meta["val"], tuple)
        },
        "exported": None if record.exported_program is None else "program",
        "delegates": len(record._delegate_map[METHOD]),  # type: ignore[index]
        "inputs": [tuple(tensor.shape) for tensor in record._representative_inputs],  # type: ignore[union-attr]
    }


def verify_bundled(blob: Blob, store: Store, case: int, tolerance: float) -> None:
    """ExecuTorch's own verification of a bundled program's test case; raises where an output is further off."""
    import torch  # noqa: F401 - its libraries must be loaded before the runtime's
    from executorch.extension.pybindings import portable_lib

    bundle = portable_lib._load_bundled_program_from_buffer(store.read(blob))
    bundle.verify_result_with_bundled_expected_output(METHOD, case, rtol=0.0, atol=tolerance)


def noted_grids(attributes: list[dict[str, Any] | None]) -> list[Quantization | None]:
    """What `qparams_of` reads on nodes that QNN's passes gave these attributes."""
    import torch

    from qnnsweep.tasks.toolchain.backends.qnn.compiler import qparams_of

    qparams = []
    for annotated in attributes:
        node = torch.fx.Graph().placeholder("x")
        if annotated is not None:
            tensors = {name: torch.tensor(value) for name, value in annotated.items() if isinstance(value, list)}
            scales = torch.tensor(annotated["scales"], dtype=torch.float64)
            node.meta["quant_attrs"] = annotated | tensors | {"scales": scales, "dtype": torch.int8}
        qparams.append(qparams_of(node))
    return qparams


def program_facts(program: Blob, kind: str, store: Store) -> ProgramFacts:
    """The facts that the product reads from a program's bytes."""
    from qnnsweep.tasks.toolchain.backends.select import backend_of
    from qnnsweep.tasks.toolchain.readback import facts

    return facts.program_facts(program, backend_of(kind), store)


def with_delegates_in(data: bytes, segments: bool) -> bytes:
    """The same program with its delegates' bytes in segments behind the flatbuffer, or inside it."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    return bytes(serialize_pte_binary(deserialize_pte_binary(data), extract_delegate_segments=segments))
