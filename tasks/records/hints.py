"""Type hints that name the unit of a field's value, and functions that take a type hint apart."""

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

Bytes = Annotated[int, "bytes"]
Seconds = Annotated[float, "s"]
Milliseconds = Annotated[float, "ms"]
Decibels = Annotated[float, "dB"]
Steps = Annotated[float, "steps of the device's grid"]
Share = Annotated[float, "0 to 1"]


def optional(hint: Any) -> tuple[Any, bool]:
    """Return the hint without None, and whether the hint allowed None."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if len(alternatives) == 2 and NoneType in alternatives:
        return next(kind for kind in alternatives if kind is not NoneType), True
    return hint, False


def annotated(hint: Any) -> tuple[Any, str | None]:
    """Return the hint without its annotation, and the annotation."""
    return get_args(hint) if get_origin(hint) is Annotated else (hint, None)


def element(hint: Any) -> Any:
    """Return T if the hint is `tuple[T, ...]`, otherwise None."""
    arguments = get_args(hint)
    return arguments[0] if get_origin(hint) is tuple and arguments[1:] == (Ellipsis,) else None
