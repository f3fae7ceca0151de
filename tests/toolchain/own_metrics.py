"""Metrics as a user would write them, found by the workers because this folder is on their path."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from executorch.backends.qualcomm.debugger.qcom_numerical_comparator_sample import QcomMSEComparator  # noqa: F401
from executorch.devtools.inspector.numerical_comparator import (  # noqa: F401
    L1Comparator,
    MSEComparator,
    NumericalComparatorBase,
    SNRComparator,
)

constant = 3


def largest(actual: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(actual - reference).max())


def is_right(actual: np.ndarray, reference: np.ndarray, label: int | None) -> float | None:
    return None if label is None else float(actual.flat[label] == actual.max())


def undefined(actual: np.ndarray, reference: np.ndarray) -> None:
    return None


def broken(actual: np.ndarray, reference: np.ndarray) -> float:
    raise ValueError("no such thing")


def endless(actual: np.ndarray, reference: np.ndarray) -> float:
    return float("inf")


def fatal(actual: np.ndarray, reference: np.ndarray) -> float:
    os.abort()


class Halved(NumericalComparatorBase):
    """The sum of the reference's halves, of handle 7 alone: shows that `preprocessing` ran, and with which handles."""

    def preprocessing(self, mapping: Any) -> Any:
        return {
            (handles, reference / 2): runtime for (handles, reference), runtime in mapping.items() if handles == (7,)
        }

    def element_compare(self, a: Any, b: Any) -> float:
        return float(a.sum())


class Demanding(NumericalComparatorBase):
    def __init__(self, threshold: float) -> None:
        super().__init__()

    def element_compare(self, a: Any, b: Any) -> float:
        return 0.0
