"""The tables of results: one Parquet folder per table, with one partition per run.

A partition is the file `artifacts/tables/<table>/run=<run_id>/part.parquet`. The rows of all runs can be read together,
for example with `pandas.read_parquet("artifacts/tables/cells")`. A damaged file is refused: it contains its checksum.
Null means "not defined", NaN is never stored, and units are in the names of the columns.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import csv
import io
import json
import re
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from qnnsweep.conf.errors import there_are
from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.records.tables import CELL_COLUMNS, TABLES, Row, columns
from qnnsweep.tasks.storage.checksum import METADATA, ChecksumError, check, with_checksum
from qnnsweep.tasks.storage.columns import arrow_type, column
from qnnsweep.tasks.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd

_ROW_GROUP = 8192
"""The number of rows that are read or skipped together. Rows are sorted by cell: a cell is in one or two groups."""
_EARLIER = {"toolchain": DEFAULT_TOOLCHAIN}
"""The values of columns that runs of earlier versions lack: these runs had only the default toolchain."""
_FIRST_COLUMNS = tuple(name for name in CELL_COLUMNS if name not in _EARLIER)
SCHEMAS = {
    table: pa.schema([(column.name, arrow_type(column.kind)) for column in columns(kind)])
    for table, kind in TABLES.items()
}


def write(store: Store, run_id: str, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a run's table, in the given order. Earlier rows of that table and run are replaced.

    If `rows` is empty, a file without rows is written. NaN becomes null. Only NumPy scalars, and integers in a column
    of floats, are converted.

    Raises ValueError for a run id that is not a file name, an unknown table, a row of another run, a row with
    other columns than the table's, and an infinite number. Raises TypeError for a value that is not of its column's
    type.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise ValueError(f"a run id consists of letters, digits, '.', '_' and '-': {run_id!r} does not")
    schema = schema_of(table)
    names = {*schema.names}
    for index, row in enumerate(rows):
        _check_row(row, names, run_id, f"{table} row {index}")
    arrays = [column([row[field.name] for row in rows], field.type, f"{table}.{field.name}") for field in schema]
    store.files.write(_name(table, run_id), encoded(schema, [pa.Table.from_arrays(arrays, schema=schema)]))


def encoded(schema: pa.Schema, pieces: Iterable[pa.Table]) -> bytes:
    """Return the content of the Parquet file for the rows of a run's table. Only one of the `pieces` is in memory."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema.remove_metadata(), compression="zstd") as writer:
        for rows in pieces:
            writer.write_table(rows, row_group_size=_ROW_GROUP)
        writer.add_key_value_metadata(METADATA)
    return with_checksum(sink.getvalue().to_pybytes())


def join(store: Store, run_id: str, table: str, parts: Sequence[Store]) -> None:
    """Write a run's table. Its rows are those of the same run and table in the stores `parts`, in the order of `parts`.

    Only one part at a time is in memory. Raises EvidenceError for a part that cannot be read.
    """
    schema = schema_of(table)
    pieces = (_read_part(part, _name(table, run_id), schema) for part in parts)
    store.files.write(_name(table, run_id), encoded(schema, pieces))


def rows(store: Store, table: str, run_id: str) -> list[Row]:
    """Return the rows of a run's table. The list is empty if the run is of an earlier version that had no such table.

    Raises RequestError for an unknown run, and EvidenceError for a file that cannot be read.
    """
    return _whole(store, table, run_id).to_pylist()


def frame(store: Store, table: str, run_id: str) -> "pd.DataFrame":
    """Return the rows of a run's table as a data frame, with the columns of docs/tables.md; see `rows`."""
    return _whole(store, table, run_id).to_pandas()


def _whole(store: Store, table: str, run_id: str) -> pa.Table:
    existing, schema = _runs_with(store, table), schema_of(table)
    if run_id in existing:
        return _read_part(store, _name(table, run_id), schema)
    if run_id in runs(store):
        return schema.empty_table()
    folder = store.display_path(f"tables/{table}")
    raise RequestError(f"no run {run_id!r} in {folder}; {there_are(existing)}")


def tsv(store: Store, table: str, run_id: str) -> str:
    """Return the rows of a run's table as tab-separated text with a header. A list is JSON, and null is empty."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(schema_of(table).names)
    for row in rows(store, table, run_id):
        writer.writerow(json.dumps(value) if isinstance(value, list) else value for value in row.values())
    return text.getvalue()


def runs(store: Store) -> list[str]:
    """Return the ids of the runs whose table `cells` exists, oldest first. Run ids sort by start time."""
    return _runs_with(store, "cells")


def parts(store: Store, table: str, runs: Collection[str] | None = None) -> list[str]:
    """Return the names of the files of the table, oldest run first. `runs`: by default all runs."""
    return [_name(table, run) for run in _runs_with(store, table) if runs is None or run in runs]


def checked_part(store: Store, name: str) -> bytes:
    """Return the content of one of the `parts`. An object store is asked only if this machine has no copy of the file.

    Raises EvidenceError for a damaged file and for a file without a checksum, and FileNotFoundError.
    """
    path = store.files.local(name)
    with errors_translated(store, name):
        data = path.read_bytes()
        try:
            check(data)
        except ValueError:
            if store.url is None:
                raise
            data = store.files.read(name)  # the copy may be damaged and the object whole
            check(data)
        return data


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
    with errors_translated(store, name):
        data = store.files.read(name)
        check(data)
        part = decoded(data)
        part.validate(full=True)  # text that is not UTF-8 would raise an error only when it is used
        if part.column_names[: len(_FIRST_COLUMNS)] != list(_FIRST_COLUMNS):
            raise ValueError(f"not a table of cells: {part.column_names[:8]}")
        return with_schema(part, schema)


def decoded(data: bytes, names: Collection[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, with all columns or those of these `names` that exist."""
    # Without Arrow's threads, which have aborted processes at their exit.
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
        columns = None if names is None else [name for name in file.schema_arrow.names if name in names]
        return file.read(columns=columns, use_threads=False)


def with_schema(part: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns of `schema`. Raises ValueError for a column that `schema` lacks."""
    # A run of an earlier version lacks columns that were added later: they are null, unless all rows had one value.
    for missing in (name for name in schema.names if name not in part.column_names):
        values = pa.repeat(pa.scalar(_EARLIER.get(missing), schema.field(missing).type), part.num_rows)
        part = part.append_column(missing, values)
    # `cast` raises for unknown columns. It changes nothing but the name that Parquet gives to a list's items.
    return part.select([*schema.names, *(set(part.column_names) - set(schema.names))]).cast(schema)


@contextmanager
def errors_translated(store: Store, name: str) -> Generator[None]:
    """Raise EvidenceError, with the file's name and a remedy, if the file of a table is damaged or of another kind."""
    try:
        yield
    except (ChecksumError, pa.ArrowException, OSError, ValueError) as error:
        problem = "is damaged" if isinstance(error, ChecksumError) else "cannot be read"
        raise EvidenceError(f"{store.display_path(name)} {problem}, remove it to leave its run out: {error}") from error


def _check_row(row: Mapping[str, Any], names: set[str], run_id: str, where: str) -> None:
    if {*row} != names:
        missing, unknown = sorted(names - {*row}), sorted({*row} - names)
        raise ValueError(f"{where} must have exactly the table's columns: missing {missing}, unknown {unknown}")
    if row["run_id"] != run_id:
        raise ValueError(f"{where} is of run {row['run_id']!r} and not of {run_id!r}")
