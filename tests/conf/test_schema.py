"""Every number of the schema has a constraint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from qnnsweep.conf.schema import Request

UNCONSTRAINED: set[str] = set()


def numbers(annotation: Any, key: str) -> Iterator[tuple[str, bool]]:
    """Yield the key of each number below `annotation`, and whether an annotation constrains it."""
    if get_origin(annotation) is Annotated or annotation in (int, float):
        yield key, annotation not in (int, float)
    elif isinstance(annotation, type) and is_dataclass(annotation):
        for name, hint in get_type_hints(annotation, include_extras=True).items():
            yield from numbers(hint, f"{key}.{name}")
    else:
        for argument in get_args(annotation):
            yield from numbers(argument, key)


def test_every_number_of_a_request_is_constrained() -> None:
    constraints = {key: constrained for key, constrained in numbers(Request, "") if not key.startswith(".pool")}
    assert len(constraints) > 40
    assert {key for key, constrained in constraints.items() if not constrained} == {*UNCONSTRAINED}
