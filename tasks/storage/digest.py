"""The identity of a value: one sha256, the same in every process and on every machine. Cache keys are made of these."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import cast


def digest(value: object) -> str:
    """The sha256 (hex) of `value`'s canonical JSON.

    Takes dataclasses, lists, tuples, dicts, enums, str, int, float, bool and None, nested at will. A dataclass
    counts by its type's name and its fields; a field whose metadata says `identity: False` does not count, at any
    depth. A list equals a tuple, a dict's order means nothing, and 1, 1.0 and True are three values.

    Raises TypeError, naming the place, for any other type (a set has no order, a path or an open file no content),
    and ValueError for NaN and infinities.
    """
    # surrogatepass: a file name that is not UTF-8 has an identity too.
    return hashlib.sha256(_text(_canonical(value, "value")).encode("utf-8", "surrogatepass")).hexdigest()


def _text(canonical: object) -> str:
    return json.dumps(canonical, ensure_ascii=False, separators=(",", ":"))


def _canonical(value: object, where: str) -> object:
    """`value` as JSON of lists, strings, whole numbers, booleans and null.

    Everything else is an object with one key that says what it was, so that no two values share a text.
    """
    match value:
        case Enum():
            # Before str and int, which an enum may be too.
            return {"enum": [type(value).__qualname__, value.name]}
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{where} is {value!r}: a digest needs finite numbers")
            # float's own repr: a NumPy float64 is a float that prints otherwise.
            return {"float": float.__repr__(value)}
        case list() | tuple():
            items = cast("list[object] | tuple[object, ...]", value)
            return [_canonical(item, f"{where}[{index}]") for index, item in enumerate(items)]
        case dict():
            entries = cast("dict[object, object]", value).items()
            pairs = [[_canonical(k, f"a key of {where}"), _canonical(v, f"{where}[{k!r}]")] for k, v in entries]
            return {"dict": sorted(pairs, key=lambda pair: _text(pair[0]))}
        case _ if is_dataclass(value) and not isinstance(value, type):
            counted = [f.name for f in fields(value) if f.metadata.get("identity", True)]
            values = [[name, _canonical(getattr(value, name), f"{where}.{name}")] for name in counted]
            return {"record": [type(value).__qualname__, values]}
        case _:
            kind = type(value).__qualname__
            raise TypeError(f"{where} is a {kind}, which has no digest: use a record, a list, a dict or a plain value")
