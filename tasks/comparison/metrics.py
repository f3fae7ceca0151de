"""The metrics that were asked for besides those of every gap, on the tensors that were compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tasks.numerics.metrics import METRICS, metric_values
from tasks.records import MetricValue, Operator, Quantization
from tasks.toolchain import entrypoints


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two tensors in the same world, and whose they are: `of`, whose metric, value and problem are still to come."""

    of: MetricValue
    actual: NDArray[Any]
    reference: NDArray[Any]
    qparams: Quantization | None
    """The device's, in whose steps the error is counted."""


def measured_by(names: Sequence[str], pairs: Sequence[Pair]) -> tuple[MetricValue, ...]:
    """Every metric of every pair, pair by pair in the order asked for. Runs in a worker: a user's own metric may do
    anything. Raises RequestError for a name that leads to none.
    """
    asked = tuple(dict.fromkeys(names))
    own = tuple(name for name in asked if name not in METRICS)
    answers = _own(own, pairs) if own and pairs else {}
    values: list[MetricValue] = []
    for number, pair in enumerate(pairs):
        ours = metric_values([name for name in asked if name in METRICS], pair.actual, pair.reference, pair.qparams)
        told = {name: (value, None) for name, value in ours.items()}
        told |= dict(zip(own, answers.get(str(number), []), strict=True))
        values += [replace(pair.of, metric=name, value=told[name][0], problem=told[name][1]) for name in asked]
    return tuple(values)


def _own(names: tuple[str, ...], pairs: Sequence[Pair]) -> dict[str, list[tuple[float | None, str | None]]]:
    tensors = {
        f"{number}/{side}": np.ascontiguousarray(value)
        for number, pair in enumerate(pairs)
        for side, value in (("actual", pair.actual), ("reference", pair.reference))
    }
    handles = {str(number): _handles(pair.of.operator) for number, pair in enumerate(pairs)}
    file = Path("pairs.safetensors")  # in the worker's own folder
    save_file(tensors, file)
    return entrypoints.own_metrics(names, file, handles)


def _handles(operator: Operator | None) -> tuple[int, ...]:
    return () if operator is None or operator.debug_handle is None else (operator.debug_handle,)
