"""The identity of a value: one sha256, the same in every process and on every machine. Cache keys are made of these."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast


def digest(value: object) -> str:
    """The sha256 (hex) of `value`'s canonical JSON.

    Takes dataclasses, lists, tuples, dicts, enums, str, int, float, bool and None, nested at will. A dataclass
    counts by its type's name and its fields; a field whose metadata says `identity: False` does not count, at any
    depth. A list equals a tuple, a dict's order means nothing, and 1, 1.0 and True are three values.

    Raises TypeError, naming the place, for any other type (a set has no order, a path or an open file no content),
    and ValueError for NaN and infinities.
    """
    # surrogatepass: a file name that is not UTF-8 has an identity too.
    return hashlib.sha256(_text(_canonical(value, _TOP)).encode("utf-8", "surrogatepass")).hexdigest()


_Place = tuple[Any, str, object]
"""Where a value stands: the place of what it is in, how the two are written together, and its index, key or name.

Written out for an error alone: a sweep asks for thousands of digests.
"""
_TOP: _Place = (None, "value", None)
_ITEM, _ENTRY, _KEY, _FIELD = "{0}[{1}]", "{0}[{1!r}]", "a key of {0}", "{0}.{1}"
_PLAIN = (str, int, bool, type(None))


def _written(place: _Place) -> str:
    around, form, own = place
    return form.format(_written(around) if around else "", own)


def _text(canonical: object) -> str:
    return json.dumps(canonical, ensure_ascii=False, separators=(",", ":"))


@cache
def _counted(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass that make its identity."""
    return tuple(each.name for each in fields(kind) if each.metadata.get("identity", True))


def _canonical(value: object, place: _Place) -> object:
    """`value` as JSON of lists, strings, whole numbers, booleans and null.

    Everything else is an object with one key that says what it was, so that no two values share a text.
    """
    if type(value) in _PLAIN:
        return value
    match value:
        case Enum():
            # Before str and int, which an enum may be too.
            return {"enum": [type(value).__qualname__, value.name]}
        case int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{_written(place)} is {value!r}: a digest needs finite numbers")
            # float's own repr: a NumPy float64 is a float that prints otherwise.
            return {"float": float.__repr__(value)}
        case list() | tuple():
            items = cast("list[object] | tuple[object, ...]", value)
            return [_canonical(item, (place, _ITEM, index)) for index, item in enumerate(items)]
        case dict():
            entries = cast("dict[object, object]", value).items()
            pairs = [[_canonical(k, (place, _KEY, None)), _canonical(v, (place, _ENTRY, k))] for k, v in entries]
            return {"dict": sorted(pairs, key=lambda pair: _text(pair[0]))}
        case _ if is_dataclass(value) and not isinstance(value, type):
            values = [[name, _canonical(getattr(value, name), (place, _FIELD, name))] for name in _counted(type(value))]
            return {"record": [type(value).__qualname__, values]}
        case _:
            kind = type(value).__qualname__
            raise TypeError(
                f"{_written(place)} is a {kind}, which has no digest: use a record, a list, a dict or a plain value"
            )
