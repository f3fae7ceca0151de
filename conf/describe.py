"""The schema in words: what a key accepts, which keys there are, what was perhaps meant."""

from __future__ import annotations

import re
import types
from dataclasses import fields, is_dataclass
from enum import EnumType
from typing import Any, Union, get_args, get_origin, get_type_hints

from conf.errors import did_you_mean, one_of, printable
from conf.schema import Request

_WORDS: dict[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Any: "anything",
}


def accepted(key: str) -> str:
    """What the key (`measure.iterations`, `model.inputs[0].shape`) accepts, in words; `anything` for an unknown one."""
    return _words(_annotation(key))


def is_known(key: str) -> bool:
    """Whether the schema has the key, or leaves what is below it to the user, as below `model.arguments`."""
    found: object = Request
    for part in _parts(key):
        if (known := _keys(found)) and part not in known:
            return False
        found = _below(found, part)
    return True


def no_such_key(key: str, *, of: object = None) -> str:
    """The refusal of a key the schema does not have: where it was looked for and what is there.

    `of` is the schema's class that was asked for it, in case the key alone does not lead there.
    """
    parent, _, last = key.rpartition(".")
    known = _keys(of) or _keys(_annotation(parent))
    if not known:  # below a mapping of the user's own, such as model.arguments
        return f"{printable(key)}: no such key; write +{printable(key)}=… to add it"
    where = f"in {printable(parent)}" if parent else "there are"
    return f"{printable(key)}: no such key; {where}: {', '.join(sorted(known))}{did_you_mean(last, known)}"


def _annotation(key: str) -> object:
    found: object = Request
    for part in _parts(key):
        found = _below(found, part)
    return found


def _parts(key: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", key)


def _below(annotation: object, part: str) -> object:
    kind = _without_none(annotation)
    if isinstance(kind, type) and is_dataclass(kind):
        return get_type_hints(kind).get(part, Any)
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1]
    return Any


def _without_none(annotation: object) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _keys(annotation: object) -> list[str]:
    kind = _without_none(annotation)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return []
    return [field.name for field in fields(kind) if field.metadata.get("asked", True)]


def _words(annotation: object) -> str:
    kind = _without_none(annotation)
    if kind is not annotation:
        return f"{_words(kind)}, or null"
    if isinstance(kind, EnumType):
        return one_of(kind.__members__)
    if known := _keys(kind):
        return f"a mapping with {', '.join(known)}"
    if get_origin(kind) is list:
        return f"a list, each item {_words(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"a mapping, each value {_words(get_args(kind)[1])}"
    return _WORDS.get(kind, "anything")
