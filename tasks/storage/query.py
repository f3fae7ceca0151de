"""Queries of a table: they read selected columns of selected rows from the files of many runs."""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.dataset as ds

from tasks.errors import EvidenceError
from tasks.records.tables import Row
from tasks.storage import tables
from tasks.storage.store import Store


def select(
    store: Store,
    table: str,
    columns: Sequence[str],
    *,
    where: Mapping[str, Collection[str]] | None = None,
    runs: Collection[str] | None = None,
) -> list[Row]:
    """Return the given columns of the selected rows of a table, in the order of the runs' ids.

    `where`: the allowed values per column. A row is selected if it has an allowed value in every column of `where`.
    `runs`: the ids of the runs to read; by default all runs. A run without the table is ignored.
    Reads only the necessary columns and row groups. Raises EvidenceError for a file that cannot be read.
    """
    schema = pa.schema([tables.schema_of(table).field(name) for name in dict.fromkeys([*columns, *(where or ())])])
    paths = [str(path) for path in tables.parts(store, table, runs).values()]
    conditions = [ds.field(name).isin(pa.array(sorted(values), pa.string())) for name, values in (where or {}).items()]
    try:
        selected = ds.dataset(paths, schema=schema, format="parquet").to_table(
            columns=list(columns), filter=reduce(and_, conditions) if conditions else None
        )
    except (pa.ArrowException, OSError) as error:
        raise EvidenceError(f"a file cannot be read, remove it to leave its run out: {error}") from error
    return selected.to_pylist()
