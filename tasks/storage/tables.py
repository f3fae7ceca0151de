"""The tables that people read: one Parquet folder a table, one partition a run, one schema for ever.

`artifacts/tables/<table>/run=<run_id>/part.parquet`; `pandas.read_parquet("artifacts/tables/cells")` reads all runs.
Null is "not defined"; NaN is never stored; units are in the names.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import csv
import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import EvidenceError, RequestError
from tasks.records.tables import CELL_COLUMNS, TABLES, Row, columns
from tasks.storage.columns import arrow_type, column
from tasks.storage.store import Store

_ROW_GROUP = 8192
"""Rows that are read or skipped together: a run's cells lie in their order, so one cell is in one group or two."""
SCHEMAS = {
    table: pa.schema([(column.name, arrow_type(column.kind)) for column in columns(kind)])
    for table, kind in TABLES.items()
}


def write(store: Store, run_id: str, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one run's rows of one table, in their order, in place of any it had; no rows still make a file.

    NaN becomes null.

    Raises ValueError for a run id that is no file name, an unknown table, a row without exactly the table's columns
    or of another run, and an infinite number: no metric may be infinite. Raises TypeError for a value of another
    type than its column's; nothing is converted but NumPy's scalars and whole numbers in a real column.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise ValueError(f"a run id is letters, digits, '.', '_' and '-', not {run_id!r}")
    schema = schema_of(table)
    names = {*schema.names}
    for index, row in enumerate(rows):
        _check_row(row, names, run_id, f"{table} row {index}")
    arrays = [column([row[field.name] for row in rows], field.type, f"{table}.{field.name}") for field in schema]
    store.files.write(_name(table, run_id), encoded(pa.Table.from_arrays(arrays, schema=schema)))


def encoded(rows: pa.Table) -> bytes:
    """One run's rows of a table as the bytes of its file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=_ROW_GROUP)
    return sink.getvalue().to_pybytes()


def join(store: Store, run_id: str, table: str, parts: Sequence[Store]) -> None:
    """Write one run's rows of one table from those that other places have of it, in the order of `parts`.

    One part at a time is in memory. Raises EvidenceError for a part that cannot be read.
    """
    schema = schema_of(table)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(_read_part(part, _name(table, run_id), schema))
    store.files.write(_name(table, run_id), sink.getvalue().to_pybytes())


def rows(store: Store, table: str, run_id: str) -> list[Row]:
    """Return one run's rows of a table. A run of an earlier version has no rows of a table that was added later.

    Raises RequestError for an unknown run, and EvidenceError for a file that cannot be read.
    """
    known, schema = _runs_with(store, table), schema_of(table)
    if run_id in known:
        return _read_part(store, _name(table, run_id), schema).to_pylist()
    if run_id in runs(store):
        return []
    folder = store.display_path(f"tables/{table}")
    raise RequestError(f"no run {run_id!r} in {folder}; there are: {', '.join(known) or 'none'}")


def tsv(store: Store, table: str, run_id: str) -> str:
    """Return one run's rows of a table as tab-separated text: a line of names, then a line per row.

    Lists are JSON, null is empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(schema_of(table).names)
    for row in rows(store, table, run_id):
        writer.writerow(json.dumps(value) if isinstance(value, list) else value for value in row.values())
    return text.getvalue()


def runs(store: Store) -> list[str]:
    """Ids of the runs that have their `cells`, oldest first (run ids sort by start time)."""
    return _runs_with(store, "cells")


def parts(store: Store, table: str, runs: Collection[str] | None = None) -> dict[str, Path]:
    """A file of this machine for each run, of `runs` or of all, that has the table; oldest first."""
    known = (run for run in _runs_with(store, table) if runs is None or run in runs)
    return {run: store.files.local(_name(table, run)) for run in known}


def schema_of(table: str) -> pa.Schema:
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}: it is one of {', '.join(TABLES)}")
    return SCHEMAS[table]


def _name(table: str, run_id: str) -> str:
    return f"tables/{table}/run={run_id}/part.parquet"


def _runs_with(store: Store, table: str) -> list[str]:
    parts = (re.fullmatch(r".*/run=([^/]+)/part\.parquet", name) for name in store.files.names(f"tables/{table}"))
    return sorted(part[1] for part in parts if part)


def _read_part(store: Store, name: str, schema: pa.Schema) -> pa.Table:
    try:
        with pq.ParquetFile(pa.BufferReader(store.files.read(name))) as file:
            part = file.read()
            if part.column_names[: len(CELL_COLUMNS)] != list(CELL_COLUMNS):
                raise ValueError(f"not a table of cells: {part.column_names[:8]}")
            # A run of an earlier version lacks columns that came later; they are null in it.
            for missing in (column for column in schema.names if column not in part.column_names):
                part = part.append_column(missing, pa.nulls(part.num_rows, schema.field(missing).type))
            # Refuses columns that the table does not have; all else it changes is what Parquet calls a list's items.
            return part.select([*schema.names, *(set(part.column_names) - set(schema.names))]).cast(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EvidenceError(
            f"{store.display_path(name)} cannot be read, remove it to leave its run out: {error}"
        ) from error


def _check_row(row: Mapping[str, Any], names: set[str], run_id: str, where: str) -> None:
    if {*row} != names:
        missing, unknown = sorted(names - {*row}), sorted({*row} - names)
        raise ValueError(f"{where} must have exactly the table's columns: missing {missing}, unknown {unknown}")
    if row["run_id"] != run_id:
        raise ValueError(f"{where} is of run {row['run_id']!r} and not of {run_id!r}")
