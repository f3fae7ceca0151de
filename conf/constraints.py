"""Constraints that a field's type cannot express. The annotations of the fields of `qnnsweep.conf.schema` have them.

A constraint is an interval of numbers, or a function. For an accepted value the function returns None, for any other
value a description of the accepted values.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from annotated_types import Interval

from qnnsweep.conf.errors import RequestError, did_you_mean, one_of, printable

Constraint = Callable[[Any], str | None]
_HIGHEST_PORT = 65_535
_MOST = 1_000_000_000
"""The largest count. A larger number is a mistake, and may not fit into the numbers of another program."""
_Search = Callable[[Any], list[tuple[str, Any, str]]]
"""A function that returns the path, the value and the accepted values of every violation in its argument."""


def _outside(limits: Interval, number: Any) -> str | None:
    if not math.isfinite(number):
        return "a finite number"
    if limits.le is not None and number > limits.le:
        return f"at most {limits.le}"
    if limits.ge is not None and number < limits.ge:
        return f"{limits.ge} or more"
    return f"above {limits.gt}" if limits.gt is not None and number <= limits.gt else None


def dimensions(accepted: str, *, least_rank: int = 0) -> Constraint:
    return lambda sizes: accepted if len(sizes) < least_rank or any(size < 1 for size in sizes) else None


def not_blank(accepted: str) -> Constraint:
    return lambda text: None if text.strip() else f"empty; {accepted}"


def choice(choices: tuple[str, ...], noun: str) -> Constraint:
    def constraint(word: str) -> str | None:
        return None if word in choices else f"no such {noun}; {did_you_mean(word, choices)}{one_of(choices)}"

    return constraint


def one_of_numbers(*choices: int) -> Constraint:
    return lambda number: None if number in choices else one_of(map(str, choices))


def matches(pattern: str, accepted: str) -> Constraint:
    return lambda text: None if re.fullmatch(pattern, text) else accepted


def with_port(pattern: str, accepted: str) -> Constraint:
    """Return a constraint for an address that matches `pattern`, whose group `port` is a number or missing."""

    def constraint(text: str) -> str | None:
        if (matched := re.fullmatch(pattern, text)) is None:
            return accepted
        return None if 0 < int(matched["port"] or 1) <= _HIGHEST_PORT else f"a port is from 1 to {_HIGHEST_PORT}"

    return constraint


host_address = with_port(
    r"([^@\s]+@)?(\[[0-9a-fA-F:.%\w]+\]|[^@:\s\[\]/-][^@:\s\[\]/]*)(:(?P<port>\d{1,5}))?",
    "not of the form [user@]host[:port]",
)


def regular_expression(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return f"not a regular expression: {error}"
    return None


def function_path(text: str) -> str | None:
    is_path = _is_module_path(text) or _is_file_path(text)
    return None if is_path else "not of the form package.module:function or folder/file.py:function"


def _is_module_path(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _is_file_path(text: str) -> bool:
    file, _, function = text.rpartition(":")
    return file.endswith(".py") and file.isprintable() and function.isidentifier()


def function_path_or(choices: tuple[str, ...], noun: str = "function") -> Constraint:
    def constraint(text: str) -> str | None:
        if text in choices or _is_module_path(text):
            return None
        return f"{did_you_mean(text, choices)}package.module:{noun}, or {one_of(choices)}"

    return constraint


Natural = Annotated[int, Interval(ge=0, le=_MOST)]
Count = Annotated[int, Interval(ge=1, le=_MOST)]
Bytes = Annotated[int, Interval(ge=1, le=1 << 40)]
Celsius = Annotated[float, Interval(ge=-273.15, le=1000)]
Cron = Annotated[
    str, matches(r"\s*\S+(\s+\S+){4}\s*", "must be five fields, for example 0 22 * * * for every night at ten")
]
Positive = Annotated[float, Interval(gt=0)]
NonNegative = Annotated[float, Interval(ge=0)]
Share = Annotated[float, Interval(ge=0, le=1)]
Finite = Annotated[float, Interval()]
Decibels = Finite
FunctionPath = Annotated[str, function_path]
HostAddress = Annotated[str, host_address]
HostAndPort = Annotated[str, with_port(r"[\w.-]+:(?P<port>\d{1,5})", "not of the form host:port")]
RegularExpression = Annotated[str, regular_expression]
NotificationBlock = Annotated[
    str, matches(r"[a-z0-9-]+/[a-z0-9-]+", "a Prefect notification block, <type>/<name>, such as custom-webhook/team")
]


def violations(config: object, key: str) -> Iterator[RequestError]:
    """Yield one error per violated constraint of the dataclass `config`. `key`: the key of `config` in the request."""
    if search := _search(type(config)):
        for path, value, accepted in search(config):
            yield RequestError(accepted, key=key + path, value=printable(value))


@cache
def _search(annotation: Any) -> _Search | None:
    """Return a function that searches a value of this type for violations, or None if the type has no constraint."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        (limits,) = annotation.__metadata__
        accept = partial(_outside, limits) if isinstance(limits, Interval) else limits
        return lambda value: [("", value, accepted)] if (accepted := accept(value)) else []
    if isinstance(annotation, type) and is_dataclass(annotation):
        hints = get_type_hints(annotation, include_extras=True)
        of_fields = [(field.name, nested) for field in fields(annotation) if (nested := _search(hints[field.name]))]
        return lambda config: [
            (f".{name}{path}", value, accepted)
            for name, search in of_fields
            for path, value, accepted in search(getattr(config, name))
        ]
    search = next(filter(None, map(_search, arguments)), None)
    if search is None:
        return None
    if origin is dict:
        return lambda entries: [
            (f".{printable(name)}{path}", value, accepted)
            for name, entry in entries.items()
            for path, value, accepted in search(entry)
        ]
    if origin is list:  # a path contains the index of an item only if the item has fields
        return lambda items: [
            (path and f"[{index}]{path}", value, accepted)
            for index, item in enumerate(items)
            for path, value, accepted in search(item)
        ]
    return lambda value: [] if value is None else search(value)
