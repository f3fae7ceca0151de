"""A table's columns out of Python's values: exactly those that the column's type holds."""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

TEXT, REAL, WHOLE, FLAG = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_AS_THEY_ARE = {
    TEXT: {str, NoneType},
    REAL: {float, NoneType},
    WHOLE: {int, NoneType},
    FLAG: {bool, NoneType},
}
"""The types of values that Arrow takes for what they are."""


def column(values: Sequence[Any], kind: pa.DataType, where: str) -> pa.Array:
    """The values, in which NaN becomes null. `where` names the column for errors.

    Nothing is converted but NumPy's scalars and whole numbers in a real column. Raises TypeError for a value of another
    type, and ValueError for an infinite number.
    """
    if _are_plain(values, kind):
        found = pa.array(values, kind, from_pandas=True)
        numbers = found
        while pa.types.is_list(numbers.type):
            numbers = numbers.flatten()
        if numbers.type != REAL or not np.isinf(numbers.to_numpy(zero_copy_only=False)).any():
            return found
    return pa.array([_value(value, kind, where) for value in values], kind)


def _are_plain(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether Arrow takes them all for what they are."""
    if not pa.types.is_list(kind):
        return {*map(type, values)} <= _AS_THEY_ARE.get(kind, set())
    items = [item for each in values if isinstance(each, tuple | list) for item in each]
    return {*map(type, values)} <= {tuple, list, NoneType} and _are_plain(items, kind.value_type)


def _value(value: Any, kind: pa.DataType, where: str) -> Any:
    """`value` as its column holds it. Arrow alone would take 1.5 for the whole number 1 and True for 1.0."""
    match value:
        case None:
            return None
        case str() if kind == TEXT:
            return value
        case bool() | np.bool_() if kind == FLAG:
            return bool(value)
        case bool():
            pass
        case Integral() if kind == WHOLE:
            return int(value)
        case Real() if kind == REAL:
            return _finite(float(value), where)
        case list() | tuple() if pa.types.is_list(kind):
            return [_value(item, kind.value_type, where) for item in value]
        case _:
            pass
    raise TypeError(f"{where} holds {kind}, not the {type(value).__name__} {value!r:.80}")


def _finite(number: float, where: str) -> float | None:
    if math.isinf(number):
        raise ValueError(f"{where} is {number}: no number in a table may be infinite")
    return None if math.isnan(number) else number
