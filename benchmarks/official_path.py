"""The compilation for one SoC on ExecuTorch's documented path. The toolchain is imported at the first call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qnnsweep.conf.schema import Request, SocConfig
from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.records import Blob, DelegationCount, ExportedMethod, Operator
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Official:
    """The result of the official path for one SoC, starting from the exported program."""

    program: Blob
    operators: tuple[Operator, ...]
    delegation: tuple[DelegationCount, ...]
    delegated_subgraphs: int


def build(exported: ExportedMethod, scheme: SchemeConfig, soc: SocConfig, store: Store) -> Official:
    """Quantize the model with ExecuTorch's quantizer, which rejects what the SoC does not support, then lower it."""
    import torch
    from executorch.backends.qualcomm.export_utils import make_quantizer
    from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype
    from torchao.quantization.pt2e import observer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.quantize import load_program
    from qnnsweep.tasks.toolchain.tensors import read_samples

    make_deterministic()
    module = load_program(store, exported.program).module()
    if scheme.precision is Precision.quantized:
        assert exported.calibration is not None
        quantizer = make_quantizer(
            quant_dtype=QuantDtype[f"use_{scheme.quant_dtype}"],
            per_channel_conv=scheme.per_channel_conv,
            per_channel_linear=scheme.per_channel_linear,
            act_observer=getattr(observer, scheme.observer),
            soc_model=soc.name,
        )
        prepared = prepare_pt2e(module, quantizer)
        count = min(scheme.calibration_samples, exported.calibration_samples)
        with torch.no_grad():
            for sample in read_samples(store, exported.calibration, [spec.name for spec in exported.inputs], count):
                prepared(*sample)
        module = convert_pt2e(prepared)
    return lower(exported, module, scheme, soc, store)


def lower(exported: ExportedMethod, module: Any, scheme: SchemeConfig, soc: SocConfig, store: Store) -> Official:
    """Call `to_edge_transform_and_lower_to_qnn` and `to_executorch` on a graph, quantized or float."""
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils import utils
    from executorch.devtools.backend_debug import get_delegation_info

    from qnnsweep.tasks.toolchain.backends.select import backend_of
    from qnnsweep.tasks.toolchain.reference.operators import delegation_counts, operator_table
    from qnnsweep.tasks.toolchain.tensors import read_samples

    (sample,) = read_samples(store, exported.evaluation, [spec.name for spec in exported.inputs], 1)
    specs = utils.generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[soc.name],
        backend_options=utils.generate_htp_compiler_spec(use_fp16=scheme.precision is Precision.float16),
    )
    edge = utils.to_edge_transform_and_lower_to_qnn(module, sample, specs, generate_etrecord=True)
    assert edge._etrecord is not None
    assert edge._etrecord.graph_map is not None
    before: Any = edge._etrecord.graph_map[f"edge_after_transform/{METHOD}"]
    lowered = edge.exported_program()
    info = get_delegation_info(lowered.graph_module)
    return Official(
        operators=tuple(operator_table(before, backend_of("qnn").compiler(scheme, soc))),
        delegation=delegation_counts(info, lowered, {}),
        delegated_subgraphs=info.num_delegated_subgraphs,
        program=store.put_bytes(edge.to_executorch().buffer),
    )


def cell_by_cell(requests: Sequence[Request], store: Store, start: float) -> list[tuple[str, dict[str, Any]]]:
    """Compile each request separately, starting from its model. Return, per request, its facts and its end time."""
    from qnnsweep.tasks.toolchain.export import export_model

    results: list[tuple[str, dict[str, Any]]] = []
    for request in requests:
        built = build(export_model(request.model, store).methods[0], request.scheme, request.soc, store)
        facts = program_facts(built.operators, built.delegation, built.delegated_subgraphs, built.program, store)
        results.append((request.soc.name, facts | {"at_s": time.time() - start}))
    return results


def program_facts(
    operators: tuple[Operator, ...],
    delegation: tuple[DelegationCount, ...],
    subgraphs: int,
    program: Blob,
    store: Store,
) -> dict[str, Any]:
    """Return the facts in which both sides must agree, and the path of the program."""
    return {
        "operators": digest([replace(row, subgraph=None) for row in operators]),
        "delegation": digest([replace(row, refusals=()) for row in delegation]),
        "subgraphs": subgraphs,
        "bytes": program.size,
        "program": str(store.path(program)),
    }
