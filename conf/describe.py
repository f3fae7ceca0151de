"""Descriptions of the schema in words: its keys, and the values that a key accepts."""

import re
import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import EnumType
from typing import Any, Union, get_args, get_origin, get_type_hints

from qnnsweep.conf.errors import RequestError, did_you_mean, one_of, printable
from qnnsweep.conf.schema import Request

_WORDS: dict[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Any: "anything",
}
_MOST_NAMES = 12


def accepted(key: str) -> str:
    """Describe the values that a key, such as `model.inputs[0].shape`, accepts. An unknown key gives `anything`."""
    return _words(_annotation(key))


def is_known(key: str) -> bool:
    """Return whether the schema has the key or lets the user add it, for example below `model.arguments`."""
    return _annotation(key) is not None


def keys_that_begin_with(text: str) -> list[str]:
    """Return the groups and keys that begin with `text`. Only keys with the same parent are returned."""
    parent, dot, last = text.rpartition(".")
    annotation = _annotation(parent) if parent else Request
    return [f"{parent}{dot}{key}" for key in _keys(annotation) if key.startswith(last)]


def choices(key: str) -> list[str]:
    """Return the values that a key accepts, if there are only a few: the members of an enumeration, true and false."""
    kind = _without_none(_annotation(key))
    if isinstance(kind, EnumType):
        return list(kind.__members__)
    return ["true", "false"] if kind is bool else []


def no_such_key(key: str, *, schema: object = None) -> RequestError:
    """Return the error for a key that the schema does not have. The message lists the keys below the same parent.

    `schema`: the class in which the key was looked up. It is needed if the class cannot be derived from the key.
    """
    parent, _, last = key.rpartition(".")
    keys = _keys(schema) or _keys(_annotation(parent))
    if not keys and parent and not is_known(parent):
        return no_such_key(parent)
    if not keys:  # below a mapping to which the user may add keys, such as model.arguments
        return RequestError(f"no such key; write +{printable(key)}=… to add it", key=printable(key))
    where = f"in {printable(parent)}" if parent else "there are"
    return RequestError(
        f"no such key; {did_you_mean(last, keys)}{where}: {', '.join(sorted(keys))}", key=printable(key)
    )


def no_such_entry(key: str, name: str, names: Sequence[str]) -> RequestError:
    """Return the error for a name that a mapping with `names` does not have, and to which the user may add it.

    `key`: the key of the mapping, a dot and the name.
    """
    parent, more = printable(key.removesuffix(f".{name}")), len(names) - _MOST_NAMES
    listed = ", ".join(map(printable, names[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")
    problem = f"no such key; {did_you_mean(name, names)}in {parent}: {listed}"
    return RequestError(f"{problem}; to add it, write +{parent}={{{printable(name)}: …}}", key=printable(key))


def _annotation(key: str) -> object:
    """Return the type of the key's value, or None if the schema has no such key."""
    annotation: object = Request
    for part in re.findall(r"[^.\[\]]+", key):
        kind = _without_none(annotation)
        if keys := _keys(kind):
            annotation = get_type_hints(kind)[part] if part in keys else None
        elif kind is not None:
            annotation = get_args(kind)[-1] if get_origin(kind) in (list, dict) else Any
    return annotation


def _without_none(annotation: object) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _keys(annotation: object) -> list[str]:
    kind = _without_none(annotation)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return []
    return [field.name for field in fields(kind) if field.metadata.get("is_key", True)]


def _words(annotation: object) -> str:
    kind = _without_none(annotation)
    if kind is not annotation:
        return f"{_words(kind)}, or null"
    if isinstance(kind, EnumType):
        return one_of(kind.__members__)
    if keys := _keys(kind):
        return f"a mapping with {', '.join(keys)}"
    if get_origin(kind) is list:
        return f"a list, each item {_words(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"a mapping, each value {_words(get_args(kind)[1])}"
    return _WORDS.get(kind, "anything")
