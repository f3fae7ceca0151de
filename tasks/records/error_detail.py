"""The record of how one operator's error is distributed over its elements."""

from dataclasses import dataclass
from typing import Literal

ErrorUnit = Literal["steps", "value"]
"""Steps of the device's grid, or the unit of the operator's value if that has no grid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDistribution:
    """The distribution of an error over the used elements of a tensor."""

    largest_error: float
    """Largest absolute error of a used element. The histogram reaches from the negative of this error to this error."""
    histogram: tuple[int, ...]
    """Number of used elements per bin of the signed error. The middle bin has the errors around 0."""
    channel_axis: int | None
    """The axis of the channels in PyTorch's layout; null for a value without axes."""
    channels: int | None
    """Number of channels; null for a value without axes."""
    channel_errors: tuple[float, ...]
    """Root mean square of the error per channel. More than 64 channels are joined into 64 groups of neighbours."""
    heat_rows: int | None
    """Number of rows of the heat map; null for a value without two spatial axes."""
    heat_columns: int | None
    """Number of columns of the heat map; null for a value without two spatial axes."""
    heat: tuple[float, ...]
    """Root mean square of the error per part of the plane, row by row; empty for a value without two spatial axes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDetail:
    """The distribution of the error that arises at one operator, on one sample, over the used elements.

    The error is the sum of all causes but the inherited error: rounded weights, clipping, resolution and the device.
    """

    method: str | None = None
    """The method that has the operator; null for a model with one method."""
    operator: str
    """The node's name in the edge graph."""
    operator_index: int
    """The operator's position in the edge graph."""
    sample: int
    """The captured sample whose final outputs have the lowest SNR."""
    unit: ErrorUnit
    """The unit of the errors: steps of the device's grid, or the unit of a value that has no grid."""
    distribution: ErrorDistribution
    value_least: float | None
    """Least used element of the right value, before it is rounded; null for a value without a grid."""
    value_largest: float | None
    """Largest used element of the right value, before it is rounded; null for a value without a grid."""
    grid_least: float | None
    """Least value on the device's grid; null for a value without a grid."""
    grid_largest: float | None
    """Largest value on the device's grid; null for a value without a grid."""
