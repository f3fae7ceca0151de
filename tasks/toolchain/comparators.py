"""A user's own metrics, and ExecuTorch's comparators, on pairs of tensors. Runs in a worker: the code is not ours."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from executorch.devtools.inspector.numerical_comparator import NumericalComparatorBase
from safetensors import safe_open

from tasks.errors import RequestError
from tasks.records.keys import tensor_key

Answer = tuple[float | None, str | None]
"""A number, None for "not defined", and what went wrong."""
Compared = Callable[[torch.Tensor, torch.Tensor, tuple[int, ...]], Any]


def own_metrics(names: tuple[str, ...], pairs: Path, handles: Mapping[str, tuple[int, ...]]) -> dict[str, list[Answer]]:
    """Every metric on every pair: pair to one answer a name.

    `pairs` is a safetensors file of `<pair>/actual` and `<pair>/reference`; `handles` has each pair's debug handles.
    Raises RequestError for a name that leads to no metric. What a metric raises is told of that pair alone.
    """
    metrics = [_metric(name) for name in names]
    answers: dict[str, list[Answer]] = {}
    with safe_open(pairs, "pt") as tensors:
        for pair, own in handles.items():
            actual, reference = (tensors.get_tensor(tensor_key(pair, side)) for side in ("actual", "reference"))
            answers[pair] = [_answer(metric, actual, reference, own) for metric in metrics]
    return answers


def _metric(name: str) -> Compared:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"measure.metrics={name}: {error}; modules in a --config-dir can be imported") from error
    if inspect.isclass(found) and issubclass(found, NumericalComparatorBase):
        return _comparator(name, found)
    if inspect.isclass(found) or not callable(found):
        raise RequestError(f"measure.metrics={name}: neither a function nor a NumericalComparatorBase")
    return lambda actual, reference, _: found(actual.numpy(), reference.numpy())


def _comparator(name: str, kind: type[NumericalComparatorBase]) -> Compared:
    from executorch.backends.qualcomm.debugger.qcom_numerical_comparator_base import QcomNumericalComparatorBase

    if issubclass(kind, QcomNumericalComparatorBase):
        # Its preprocessing dequantizes and undoes the layout, which is done already; it may not be another.
        prepared = kind(edge_ep=None)  # type: ignore[arg-type]
        return lambda actual, reference, _: prepared.element_compare(reference, actual)
    try:
        comparator = kind()
    except TypeError as error:
        raise RequestError(f"measure.metrics={name}: cannot be made without arguments: {error}") from error

    def compared(actual: torch.Tensor, reference: torch.Tensor, handles: tuple[int, ...]) -> float | None:
        """None where the comparator's preprocessing leaves the pair out."""
        processed = comparator.preprocessing({(handles, reference): (handles, actual)})
        comparator._validate_preprocessing_output(processed)
        gaps = [comparator.element_compare(aot, runtime) for (_, aot), (_, runtime) in processed.items()]
        return gaps[0] if gaps else None

    return compared


def _answer(metric: Compared, actual: torch.Tensor, reference: torch.Tensor, handles: tuple[int, ...]) -> Answer:
    try:
        value = metric(actual, reference, handles)
        number = None if value is None else float(value)
    except Exception as error:  # noqa: BLE001 - the border to code that is not ours
        return None, f"{type(error).__name__}: {error}"
    if number is None or math.isfinite(number):
        return number, None
    return None, f"it gave {number}"
