"""The metrics that are computed on request, in addition to the metrics that every row has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from qnnsweep.tasks.numerics.metrics import METRICS, metric_values
from qnnsweep.tasks.records import MetricValue, Operator, Quantization
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.vocabulary import Reference, Rung
from qnnsweep.tasks.toolchain import entrypoints


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two tensors of the same layout and scale, from which metrics are computed."""

    subject: MetricValue  # identifies the tensor; its metric and value are not set
    actual: NDArray[Any]
    reference: NDArray[Any]
    qparams: Quantization | None  # of the device's tensor, for metrics in quantization steps
    label: int | None = None  # of the sample, for a final output


def metric_template(
    operator: Operator | None, output_index: int, sample: int, rung: Rung, reference: Reference
) -> MetricValue:
    """Return a MetricValue whose metric and value are not set yet. `operator`: None for a final output."""
    return MetricValue(
        operator=operator.name if operator else None,
        operator_index=operator.index if operator else None,
        debug_handle=operator.debug_handle if operator else None,
        output_index=output_index,
        sample=sample,
        rung=rung,
        reference=reference,
        metric="",
        value=None,
        problem=None,
    )


def compute_metrics(names: Sequence[str], pairs: Sequence[Pair]) -> tuple[MetricValue, ...]:
    """Return every metric's value for every pair. The values are ordered by pair, then as in `names`.

    A repeated name counts once. A name that is not in `METRICS` means a user's own function, `package.module:function`.
    A user's code can do anything, so call `compute_metrics` in a worker process. Raises RequestError for a name that
    cannot be loaded.
    """
    unique = tuple(dict.fromkeys(names))
    built_in = tuple(name for name in unique if name in METRICS)
    user_defined = tuple(name for name in unique if name not in METRICS)
    own_results = _own_metrics(user_defined, pairs) if user_defined and pairs else {}
    values: list[MetricValue] = []
    for number, pair in enumerate(pairs):
        results: dict[str, tuple[float | None, str | None]] = {
            name: (value, None)
            for name, value in metric_values(built_in, pair.actual, pair.reference, pair.qparams).items()
        }
        results |= zip(user_defined, own_results.get(str(number), []), strict=True)
        values += [
            replace(pair.subject, metric=name, value=results[name][0], problem=results[name][1]) for name in unique
        ]
    return tuple(values)


def _own_metrics(names: tuple[str, ...], pairs: Sequence[Pair]) -> dict[str, list[tuple[float | None, str | None]]]:
    tensors = {
        tensor_key(number, side): np.ascontiguousarray(value)
        for number, pair in enumerate(pairs)
        for side, value in (("actual", pair.actual), ("reference", pair.reference))
    }
    handles = {str(number): _handles(pair.subject.debug_handle) for number, pair in enumerate(pairs)}
    labels = {str(number): pair.label for number, pair in enumerate(pairs) if pair.subject.operator is None}
    file = Path("pairs.safetensors")  # in the worker's own folder
    save_file(tensors, file)
    return entrypoints.own_metrics(names, file, handles, labels)


def _handles(debug_handle: int | None) -> tuple[int, ...]:
    return () if debug_handle is None else (debug_handle,)
