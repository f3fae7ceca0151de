"""The tables: the dataclass of a table's rows defines its columns by its fields, their type hints and docstrings.

A field whose type is itself a dataclass stands for that dataclass's fields, in its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, cast, get_type_hints

from tasks.records.cell_rows import (
    AuditRow,
    CellIdentity,
    CellRow,
    CommandRow,
    DelegationRow,
    ProbeRow,
    TrendRow,
    WorkRow,
)
from tasks.records.hints import annotated, optional
from tasks.records.operator_rows import MetricRow, ModuleRow, OperatorRow, OutputRow, ProfileRow
from tasks.records.stages import Toolchain

Row = dict[str, Any]
"""A row as its values by columns."""

TABLES: dict[str, type[Any]] = {
    "cells": CellRow,
    "operators": OperatorRow,
    "outputs": OutputRow,
    "profile": ProfileRow,
    "modules": ModuleRow,
    "metrics": MetricRow,
    "delegation": DelegationRow,
    "audit": AuditRow,
    "probe": ProbeRow,
    "work": WorkRow,
    "commands": CommandRow,
    "trends": TrendRow,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    name: str
    kind: Any
    """The type hint of a value, without None and without the unit."""
    unit: str | None
    field: str
    """The row's field: the column itself, or the record that contains it."""
    defined_in: type[Any]
    """The dataclass with the column's field and docstring."""


@cache
def columns(kind: type[Any]) -> tuple[Column, ...]:
    """Return the columns of a class of rows, in their order."""
    return tuple(_columns(kind))


def by_columns(row: object) -> Row:
    """Return a row object's values by columns. Those of an absent record are None."""
    values: Row = {}
    for field, names in _names(type(row)):
        value = getattr(row, field)
        if names is None:
            values[field] = value
        else:
            values |= dict.fromkeys(names) if value is None else {name: getattr(value, name) for name in names}
    return values


def _columns(kind: type[Any]) -> Iterator[Column]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, unit = annotated(optional(hint)[0])
        if is_dataclass(inner):
            yield from (replace(column, field=name) for column in columns(cast("type[Any]", inner)))
        else:
            yield Column(name=name, kind=inner, unit=unit, field=name, defined_in=kind)


@cache
def _names(kind: type[Any]) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """Return each field and, where it is a record, the record's columns."""
    by_field: dict[str, list[str]] = {}
    for column in columns(kind):
        by_field.setdefault(column.field, []).append(column.name)
    return tuple((field, None if names == [field] else tuple(names)) for field, names in by_field.items())


SUBJECT_COLUMNS = ("model", "scheme", "backend", "soc")
"""The columns that name the subject of a toolchain call: the first ones on which the call depends."""
CELL_COLUMNS = tuple(column.name for column in columns(CellIdentity))
"""The columns that every table begins with: they identify the row's cell."""
VERSION_COLUMNS = tuple(column.name for column in columns(Toolchain))
"""The columns of `cells` with the toolchain's versions."""
