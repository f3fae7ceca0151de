"""Sample cells of a repair: a few operators with an error budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import (
    Comparison,
    ErrorParts,
    ErrorShare,
    LoweredProgram,
    Operator,
    OperatorComparison,
    Quantization,
)
from qnnsweep.tasks.records.vocabulary import Cause
from tests.sample_records import ANSWER, COMPARISON, CONV, LOWERED, blob, with_method

WIDE = Quantization(scale=(1.0,), zero_point=(65535,), quant_min=0, quant_max=65535, dtype="uint16", axis=None)
BYTES = Quantization(scale=(0.1,), zero_point=(0,), quant_min=0, quant_max=255, dtype="uint8", axis=None)
ADD, CONVOLUTION, RELU = "aten.add.Tensor", "aten.convolution.default", "aten.relu.default"


def operator(name: str, target: str, qparams: Quantization | None = BYTES, **fields: Any) -> Operator:
    defaults: dict[str, Any] = {"index": 0, "source_nodes": (f"node_{name}",), "module_path": f"layers.{name}"}
    return replace(CONV, name=name, target=target, quantization=qparams, **defaults | fields)


def cell(
    operators: Sequence[Operator], shares: dict[tuple[Cause, str], float], **rows: dict[str, Any]
) -> tuple[Comparison, LoweredProgram]:
    """Return a cell with this budget. `rows`: by operator, the parts of its error and the fields of its row."""
    numbered = [replace(row, index=index) for index, row in enumerate(operators)]
    compared: list[OperatorComparison] = []
    for row in numbered:
        fields = dict(rows.get(row.name, {}))
        masked_by = fields.pop("masked_by", ())
        parts = ErrorParts(introduced_rms_steps=0.2, **fields)
        compared.append(replace(COMPARISON.operators[0], operator=row, parts=parts, masked_by=masked_by))
    totals: dict[Cause, float] = dict.fromkeys(("weights", "bias", "clipping", "resolution", "device"), 0.0)
    for (cause, _), value in shares.items():
        totals[cause] += value
    budget = [share(cause, value, None) for cause, value in totals.items()]
    budget.append(share("unexplained", 1.0 - sum(totals.values()), None))
    budget += [share(cause, value, name) for (cause, name), value in shares.items()]
    comparison = replace(COMPARISON, outputs=(ANSWER,), operators=tuple(compared), budget=tuple(budget))
    lowered = replace(LOWERED, program=blob("1", 1_000_000))
    return comparison, with_method(lowered, operators=tuple(numbered))


def share(cause: Cause, value: float, name: str | None) -> ErrorShare:
    return ErrorShare(
        output_index=ANSWER.output_index, output="logits", cause=cause, operator=name, operator_index=None,
        module_path=None, share=value, share_error=0.0, alone_snr_db=None, without_snr_db=None, sample=0,
    )  # fmt: skip


def scheme(dtype: str, *overrides: SchemeOverride) -> SchemeConfig:
    return SchemeConfig(name=dtype, quant_dtype=dtype, overrides=list(overrides))
