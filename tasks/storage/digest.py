"""The digest of a value: a sha256 that is the same in every process and on every machine. Cache keys use it."""

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast


def digest(value: object) -> str:
    """Return the sha256 (hex) of the canonical JSON of `value`.

    A value consists of dataclasses, lists, tuples, dicts, enums, str, int, float, bool and None, nested to any depth. A
    dataclass is represented by its type's name and its fields; fields with the metadata `identity: False`, and fields
    that are None with the metadata `identity: "unless None"`, are left out, at any depth. A list and a tuple of equal
    items have the same digest. The order of a dict has no effect. The digests of 1, 1.0 and True differ.

    Raises TypeError, with the position in `value`, for any other type: a set has no order, and a path or an open file
    has no content. Raises ValueError for NaN and infinities.
    """
    # surrogatepass: a file name that is not UTF-8 has a digest too.
    return hashlib.sha256(_text(_canonical(value, _TOP)).encode("utf-8", "surrogatepass")).hexdigest()


_Position = tuple[Any, str, object]
"""The position of a value: its container's position, a format string, and the value's index, key or field name.

A position is formatted only for an error message, because a sweep computes thousands of digests.
"""
_TOP: _Position = (None, "value", None)
_ITEM, _ENTRY, _KEY, _FIELD = "{0}[{1}]", "{0}[{1!r}]", "a key of {0}", "{0}.{1}"
_PLAIN = (str, int, bool, type(None))


def _formatted(position: _Position) -> str:
    container, template, index = position
    return template.format(_formatted(container) if container else "", index)


def _text(canonical: object) -> str:
    return json.dumps(canonical, ensure_ascii=False, separators=(",", ":"))


@cache
def _identity_fields(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a dataclass that are part of its identity: their names, and whether None is left out."""
    identities = ((field.name, field.metadata.get("identity", True)) for field in fields(kind))
    return tuple((name, identity == "unless None") for name, identity in identities if identity)


def _canonical(value: object, position: _Position) -> object:
    """Return `value` in a form for JSON. Strings, integers, booleans and None stay as they are.

    A list or a tuple becomes a list. Any other value becomes a JSON object whose only key is the value's kind, so that
    different values have different texts.
    """
    if type(value) in _PLAIN:
        return value
    match value:
        case Enum():
            # Before str and int: an enum can be an instance of these too.
            return {"enum": [type(value).__qualname__, value.name]}
        case int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{_formatted(position)} is {value!r}: a digest needs finite numbers")
            # float's repr: a NumPy float64 is a float with another repr.
            return {"float": float.__repr__(value)}
        case list() | tuple():
            items = cast("list[object] | tuple[object, ...]", value)
            return [_canonical(item, (position, _ITEM, index)) for index, item in enumerate(items)]
        case dict():
            entries = cast("dict[object, object]", value).items()
            pairs = [[_canonical(k, (position, _KEY, None)), _canonical(v, (position, _ENTRY, k))] for k, v in entries]
            return {"dict": sorted(pairs, key=lambda pair: _text(pair[0]))}
        case _ if is_dataclass(value) and not isinstance(value, type):
            values = [
                [name, _canonical(getattr(value, name), (position, _FIELD, name))]
                for name, unless_none in _identity_fields(type(value))
                if not (unless_none and getattr(value, name) is None)
            ]
            return {"record": [type(value).__qualname__, values]}
        case _:
            kind = type(value).__qualname__
            raise TypeError(
                f"{_formatted(position)} is a {kind} and has no digest: use a record, a list, a dict or a plain value"
            )
