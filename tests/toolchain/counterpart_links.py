"""What the tests ask of the links between graphs in a worker process: this process never imports ExecuTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.records import CapturedMethod, LoweredMethod, QuantizedModel
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Linked:
    """The nodes that an operator stands for, and the SNR in dB of its value on the host; inf if the two are equal."""

    nodes: tuple[str, ...]
    status: str | None
    snr_db: float | None


def linked(
    quantized: QuantizedModel, scheme: SchemeConfig, kind: str, store: Store
) -> dict[str, tuple[dict[str, Linked], list[str]]]:
    """By reference the operators that are no constants, and the nodes that no operator stands for."""
    import torch

    from qnnsweep.tasks.toolchain.backends.select import backend_of
    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.edge import edge_program
    from qnnsweep.tasks.toolchain.reference.counterparts import other_reference
    from qnnsweep.tasks.toolchain.reference.graph import graph_of
    from qnnsweep.tasks.toolchain.reference.operators import operator_table
    from qnnsweep.tasks.toolchain.saved_program import load_program
    from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

    make_deterministic()
    exported = quantized.exported
    (sample,) = read_samples(
        store, exported.methods[0].evaluation, [spec.name for spec in exported.methods[0].inputs], 1
    )
    compiler = backend_of(kind).compiler(scheme, None)
    edge = edge_program(compiler, load_program(store, quantized.methods[0].program)).exported_program()
    operators = operator_table(edge, compiler)
    with torch.no_grad():
        actual = graph_of(edge).tensors(sample)
    links = {}
    for name, program in (("exported", exported.methods[0].program), ("quantized", quantized.methods[0].program)):
        other = other_reference(name, load_program(store, program), edge, operators, {0: sample}, store)
        values = read_tensors(store, other.values)
        rows = {}
        for row, counterpart in zip(operators, other.counterparts, strict=True):
            if row.constant or row.unused:
                continue
            far = _snr_db(actual[row.index], values[tensor_key(0, row.index)]) if counterpart.status is None else None
            rows[row.name] = Linked(nodes=counterpart.nodes, status=counterpart.status, snr_db=far)
        links[name] = (rows, [node.name for node in other.unclaimed])
    return links


def computed_values(
    lowered: LoweredMethod, capture: CapturedMethod, store: Store
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Compute the values of a chosen sample in other references, as if it had not been chosen.

    Return the reference and the operator of the values that are those that were stored, and of those that are not.
    """
    stored = Evidence(lowered, capture, store)
    computed = Evidence(replace(lowered, chosen=(), reference=()), capture, store)
    sample = stored.samples[0]
    same: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for other in lowered.references:
        for row, counterpart in zip(lowered.operators, other.counterparts, strict=True):
            if counterpart.status is None:
                values = [evidence.other_value(other, sample, row.index).tobytes() for evidence in (stored, computed)]
                (same if values[0] == values[1] else others).append((other.name, row.name))
    return same, others


def _snr_db(actual: Any, reference: Any) -> float:
    ratio = snr_db(actual.numpy(), reference.numpy())
    return math.inf if ratio is None else ratio
