"""Measures of a final output beside its SNR: about the mean of each channel, row by row, and shares of right elements.

A row is a slice along the last axis. An SNR counts an offset as signal, and is dominated by the largest rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measures:
    """The measures of an output of one sample. A measure that is not defined is None; see `OutputComparison`."""

    centred_snr_db: float | None = None
    row_snr_db: float | None = None
    rows: int | None = None
    rows_same_top1: int | None = None
    equal_elements: float | None = None


def measures(actual: Array, reference: Array, means: Array | None) -> Measures:
    """Return the measures of an output. `means`: those of its channels, see `channel_means`; None if not defined."""
    if actual.shape != reference.shape or not actual.size:
        return Measures()
    if reference.dtype.kind != "f":
        return Measures(equal_elements=float(np.count_nonzero(actual == reference)) / actual.size)
    if not (np.isfinite(actual).all() and np.isfinite(reference).all()):
        return Measures()
    error = actual.astype(np.float64) - reference
    centred = None if means is None else _snr_db(_energy(reference - means), _energy(error))
    if not reference.ndim or reference.shape[-1] < 2:
        return Measures(centred_snr_db=centred)
    same = top1_of_rows(actual) == top1_of_rows(reference)
    return Measures(
        centred_snr_db=centred,
        row_snr_db=_lowest_of_rows(reference.astype(np.float64), error),
        rows=int(same.size),
        rows_same_top1=int(np.count_nonzero(same)),
    )


def channel_means(samples: Sequence[Array]) -> Array | None:
    """Return the means of the channels of a float output over all samples, as an array that fits one sample.

    The channels are along the axis whose means explain most of the energy. None if every channel has only one element.
    """
    if not samples or samples[0].dtype.kind != "f" or len({sample.shape for sample in samples}) > 1:
        return None
    values = np.stack(samples).astype(np.float64)
    if not values.size or not np.isfinite(values).all():
        return None
    axes = [axis for axis in range(1, values.ndim) if 1 < values.shape[axis] < values.size]
    candidates = [values.mean(axis=tuple(set(range(values.ndim)) - {axis}), keepdims=True)[0] for axis in axes]
    if not candidates:
        return values.mean(axis=0) if len(samples) > 1 else None
    return min(candidates, key=lambda means: _energy(values - means))


def top1_of_rows(values: Array) -> Array:
    """Return the index of the largest element of every row; of equal elements, the index of the first."""
    return np.argmax(values, axis=-1)


def _lowest_of_rows(reference: Array, error: Array) -> float | None:
    """Return the lowest SNR of the rows whose reference is not zero. A row without an error has no SNR."""
    signal, noise = (np.square(values).sum(axis=-1) for values in (reference, error))
    both = (signal > 0) & (noise > 0)
    ratios = signal[both] / noise[both]
    return 10 * math.log10(float(ratios.min())) if ratios.size else None


def _snr_db(signal: float, noise: float) -> float | None:
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None


def _energy(values: Array) -> float:
    return float(np.square(values).sum())
