"""The tables. Every table has a dataclass for its rows. The fields of that class define the table's columns.

A field's type hint and docstring describe its column. A field whose type is a dataclass is replaced by the columns of
that dataclass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, cast, get_type_hints

from qnnsweep.tasks.records import atlas, cell_rows, operator_rows, repair_rows
from qnnsweep.tasks.records.hints import annotated, optional
from qnnsweep.tasks.records.stages import Toolchain

Row = dict[str, Any]
"""The values of a row, by the columns' names."""

TABLES: dict[str, type[Any]] = {
    "cells": cell_rows.CellRow,
    "operators": operator_rows.OperatorRow,
    "outputs": operator_rows.OutputRow,
    "steps": operator_rows.StepRow,
    "scores": operator_rows.ScoreRow,
    "profile": operator_rows.ProfileRow,
    "modules": operator_rows.ModuleRow,
    "metrics": operator_rows.MetricRow,
    "budget": operator_rows.BudgetRow,
    "details": operator_rows.DetailRow,
    "delegation": cell_rows.DelegationRow,
    "audit": cell_rows.AuditRow,
    "probe": cell_rows.ProbeRow,
    "work": cell_rows.WorkRow,
    "commands": cell_rows.CommandRow,
    "trends": cell_rows.TrendRow,
    "repair": repair_rows.RepairRow,
    "certificate": repair_rows.CertificateRow,
    "atlas": atlas.AtlasRow,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    name: str
    kind: Any  # the type hint of a value, without None and without the unit
    unit: str | None
    defined_in: type[Any]  # the dataclass with the column's field and docstring


@cache
def columns(kind: type[Any]) -> tuple[Column, ...]:
    """Return the columns that a row's dataclass defines, in the order of its fields."""
    return tuple(_columns(kind))


def by_columns(row: object) -> Row:
    """Return the values of a row object by column name. If a nested record is None, its columns have the value None."""
    values: Row = {}
    for field, record in _fields(type(row)):
        value = getattr(row, field)
        if record is None:
            values[field] = value
        else:
            values |= by_columns(value) if value is not None else {column.name: None for column in columns(record)}
    return values


def _columns(kind: type[Any]) -> Iterator[Column]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, unit = annotated(optional(hint)[0])
        if is_dataclass(inner):
            yield from columns(cast("type[Any]", inner))
        else:
            yield Column(name=name, kind=inner, unit=unit, defined_in=kind)


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, type[Any] | None], ...]:
    """Return a pair per field: its name, and its type if that is a dataclass, otherwise None."""
    hints = {name: optional(hint)[0] for name, hint in get_type_hints(kind).items()}
    return tuple((name, cast("type[Any]", hint) if is_dataclass(hint) else None) for name, hint in hints.items())


SUBJECT_COLUMNS = ("model", "scheme", "backend", "soc")
"""The columns that name the subject of a toolchain call, in order. A shorter subject has only the first columns."""
CELL_COLUMNS = tuple(column.name for column in columns(cell_rows.CellIdentity))
"""The first columns of every table. They identify the row's cell."""
VERSION_COLUMNS = tuple(column.name for column in columns(Toolchain))
"""The columns of the table `cells` with the toolchain's versions."""
