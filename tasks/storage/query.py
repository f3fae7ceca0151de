"""Queries of a table: they read selected columns of selected rows from the files of many runs."""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store


def select(
    store: Store,
    table: str,
    columns: Sequence[str],
    *,
    where: Mapping[str, Collection[str]] | None = None,
    runs: Collection[str] | None = None,
    problems: set[str] | None = None,
) -> list[Row]:
    """Return the given columns of the selected rows of a table, in the order of the runs' ids.

    `where`: the allowed values per column. A row is selected if it has an allowed value in every column of `where`.
    `runs`: the ids of the runs to read; by default all runs. A run without the table is ignored.
    `problems`: if given, the rows of a file that cannot be read are left out, and a line that names the file is added.
    Otherwise EvidenceError is raised for such a file. Decodes only the necessary columns.
    """
    schema = pa.schema([tables.schema_of(table).field(name) for name in dict.fromkeys([*columns, *(where or ())])])

    def rows(name: str) -> list[Row] | EvidenceError:
        try:
            data = tables.checked_part(store, name)
            with tables.errors_translated(store, name):
                return _selected(data, schema, where or {}).select(list(columns)).to_pylist()
        except FileNotFoundError:  # the run has been removed since its name was listed
            return []
        except EvidenceError as error:
            return error

    selected: list[Row] = []
    # Reading and hashing a file releases the interpreter's lock.
    with ThreadPoolExecutor() as threads:
        for part in threads.map(rows, tables.parts(store, table, runs)):
            if isinstance(part, list):
                selected += part
            elif problems is None:
                raise part
            else:
                problems.add(str(part))
    return selected


def _selected(data: bytes, schema: pa.Schema, where: Mapping[str, Collection[str]]) -> pa.Table:
    """Return the selected rows of a file, with the columns of `schema`. A column that the file lacks is null."""
    part = tables.with_schema(tables.decoded(data, schema.names), schema)
    for name, values in where.items():
        part = part.filter(pc.is_in(part[name], value_set=pa.array(sorted(values), pa.string())))
    return part
