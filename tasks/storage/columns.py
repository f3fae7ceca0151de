"""Arrow columns of Python values. Their types follow from type hints, and no value is converted silently."""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import math
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_origin

import numpy as np
import pyarrow as pa

from qnnsweep.tasks.records.hints import element, optional

STRING, FLOAT64, INT64, BOOL = pa.string(), pa.float64(), pa.int64(), pa.bool_()
ARROW_TYPES: dict[type, pa.DataType] = {str: STRING, float: FLOAT64, int: INT64, bool: BOOL}


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ImportError(fullname)


def _leave_pandas_out() -> None:
    """Prevent pyarrow from importing pandas, which takes a while, before it converts its first Python values.

    pyarrow imports pandas to recognize values of pandas, and tries this only once. `to_pandas` still imports it.
    """
    no_pandas = _NoPandas()
    sys.meta_path.insert(0, no_pandas)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(no_pandas)


_leave_pandas_out()
_EXACT_TYPES = {arrow: {python, NoneType} for python, arrow in ARROW_TYPES.items()}
"""Per Arrow type: the Python types whose values Arrow stores without a change."""


def arrow_type(hint: Any) -> pa.DataType:
    """Return the Arrow type of a column for values with the type hint `hint`. Every column can hold null."""
    kind, _ = optional(hint)
    if (item := element(kind)) is not None:
        return pa.list_(arrow_type(item))
    return STRING if get_origin(kind) is Literal else ARROW_TYPES[kind]


def column(values: Sequence[Any], kind: pa.DataType, where: str) -> pa.Array:
    """Return the values as a column, with null in place of NaN. `where`: the column's name for error messages.

    Only NumPy scalars, and integers in a column of floats, are converted. Raises TypeError for a value of another type,
    and ValueError for an infinite number.
    """
    if _are_exact(values, kind):
        array = pa.array(values, kind, from_pandas=True)
        numbers = array
        while pa.types.is_list(numbers.type):
            numbers = numbers.flatten()
        if numbers.type != FLOAT64 or not np.isinf(numbers.to_numpy(zero_copy_only=False)).any():
            return array
    return pa.array([_value(value, kind, where) for value in values], kind)


def _are_exact(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Return whether Arrow stores all values without a change."""
    if not pa.types.is_list(kind):
        return {*map(type, values)} <= _EXACT_TYPES.get(kind, set())
    items = [item for value in values if isinstance(value, tuple | list) for item in value]
    return {*map(type, values)} <= {tuple, list, NoneType} and _are_exact(items, kind.value_type)


def _value(value: Any, kind: pa.DataType, where: str) -> Any:
    """Return `value` in its column's type. Arrow by itself would store 1.5 as the integer 1 and True as 1.0."""
    match value:
        case None:
            return None
        case str() if kind == STRING:
            return value
        case bool() | np.bool_() if kind == BOOL:
            return bool(value)
        case bool():
            pass
        case Integral() if kind == INT64:
            return int(value)
        case Real() if kind == FLOAT64:
            if math.isinf(value):
                raise ValueError(f"{where} is {float(value)}: no number in a table may be infinite")
            return None if math.isnan(value) else float(value)
        case list() | tuple() if pa.types.is_list(kind):
            return [_value(item, kind.value_type, where) for item in value]
        case _:
            pass
    raise TypeError(f"{where} holds {kind}, not the {type(value).__name__} {value!r:.80}")
