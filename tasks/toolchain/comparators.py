"""The user's own metrics and ExecuTorch's comparators, on pairs of tensors. Runs in a worker, like all foreign code."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.devtools.inspector.numerical_comparator import NumericalComparatorBase
from safetensors import safe_open

from qnnsweep.tasks.errors import RequestError, raise_shortage
from qnnsweep.tasks.records.keys import tensor_key

MetricResult = tuple[float | None, str | None]
"""The metric's number (None if it is not defined) and its error message (None if there was no error)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What a pair of tensors is about. `handles`: the debug handles of the operator. `label`: that of the sample."""

    handles: tuple[int, ...]
    is_final: bool
    label: int | None


Metric = Callable[[torch.Tensor, torch.Tensor, Subject], Any]
"""A function of the actual tensor, the reference and what both are about."""


def own_metrics(
    names: tuple[str, ...], pairs: Path, handles: Mapping[str, tuple[int, ...]], labels: Mapping[str, int | None]
) -> dict[str, list[MetricResult]]:
    """Compute every metric on every pair. Return, for each pair, its results in the order of `names`.

    `pairs`: a safetensors file with the tensors `<pair>/actual` and `<pair>/reference`. `handles`: the debug handles
    of each pair. `labels`: of the samples, for each pair of a final output. Raises RequestError if a name is not the
    name of a metric. If a metric raises an error on a pair, the error is the metric's result for this pair.
    """
    metrics = [_metric(name) for name in names]
    results: dict[str, list[MetricResult]] = {}
    with safe_open(pairs, "pt") as tensors:
        for pair, debug_handles in handles.items():
            subject = Subject(handles=debug_handles, is_final=pair in labels, label=labels.get(pair))
            actual, reference = (tensors.get_tensor(tensor_key(pair, side)) for side in ("actual", "reference"))
            results[pair] = [_result(metric, actual, reference, subject) for metric in metrics]
    return results


def _metric(name: str) -> Metric:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"measure.metrics={name}: {error}; modules in a --config-dir can be imported") from error
    if inspect.isclass(function) and issubclass(function, NumericalComparatorBase):
        return _comparator(name, function)
    if inspect.isclass(function) or not callable(function):
        raise RequestError(f"measure.metrics={name}: neither a function nor a NumericalComparatorBase")
    if not _takes_label(function):
        return lambda actual, reference, _: function(actual.numpy(), reference.numpy())

    def of_final_output(actual: torch.Tensor, reference: torch.Tensor, subject: Subject) -> Any:
        return function(actual.numpy(), reference.numpy(), label=subject.label) if subject.is_final else None

    return of_final_output


def _takes_label(function: Callable[..., Any]) -> bool:
    try:
        return "label" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some functions that are written in C
        return False


def _comparator(name: str, kind: type[NumericalComparatorBase]) -> Metric:
    from executorch.backends.qualcomm.debugger.qcom_numerical_comparator_base import QcomNumericalComparatorBase

    if issubclass(kind, QcomNumericalComparatorBase):
        # Qualcomm's preprocessing cannot be overridden. It dequantizes and restores the layout. Both are already done.
        prepared = kind(edge_ep=None)  # type: ignore[arg-type]
        return lambda actual, reference, _: prepared.element_compare(reference, actual)
    try:
        comparator = kind()
    except TypeError as error:
        raise RequestError(f"measure.metrics={name}: cannot be made without arguments: {error}") from error

    def metric(actual: torch.Tensor, reference: torch.Tensor, subject: Subject) -> float | None:
        """Return the comparator's result for the pair; None if its preprocessing leaves the pair out."""
        processed = comparator.preprocessing({(subject.handles, reference): (subject.handles, actual)})
        comparator._validate_preprocessing_output(processed)
        pairs = ((aot, runtime) for (_, aot), (_, runtime) in processed.items())
        return next((comparator.element_compare(aot, runtime) for aot, runtime in pairs), None)

    return metric


def _result(metric: Metric, actual: torch.Tensor, reference: torch.Tensor, subject: Subject) -> MetricResult:
    try:
        value = metric(actual, reference, subject)
        number = None if value is None else float(value)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything
        raise_shortage(error)
        return None, f"{type(error).__name__}: {error}"
    if number is None or math.isfinite(number):
        return number, None
    return None, f"it returned {number}"
