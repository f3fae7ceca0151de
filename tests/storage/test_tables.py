"""Tables have exactly the rows that were written, per run, also when pandas reads them."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError, RequestError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.columns import column
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.storage.tables import TABLES, schema_of

FIRST, SECOND = "20261120T020000Z-a1b2", "20261121T020000Z-c3d4"

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.bool_(): st.booleans(),
}


def row(table: str, run_id: str, **values: Any) -> dict[str, Any]:
    """Return a row with null in all other columns."""
    return {**dict.fromkeys(schema_of(table).names), "run_id": run_id, **values}


def write(store: Store, run_id: str, table: str, rows: list[dict[str, Any]]) -> Path:
    tables.write(store, run_id, table, rows)
    return store.root / "tables" / table / f"run={run_id}" / "part.parquet"


def rows_of(table: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    def cells(kind: pa.DataType) -> st.SearchStrategy[Any]:
        if pa.types.is_list(kind):
            return st.none() | st.lists(cells(kind.value_type), max_size=3)
        return st.none() | VALUES[kind]

    columns = {field.name: cells(field.type) for field in schema_of(table)}
    return st.lists(st.fixed_dictionaries({**columns, "run_id": st.just(FIRST)}), max_size=2)


@pytest.mark.parametrize("table", TABLES)
@given(data=st.data())
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_rows_are_stored_exactly_and_in_order(store: Store, table: str, data: st.DataObject) -> None:
    rows = data.draw(rows_of(table))
    path = write(store, FIRST, table, rows)
    assert path == store.root / "tables" / table / f"run={FIRST}" / "part.parquet"
    with pq.ParquetFile(path) as file:
        assert repr(file.read().to_pylist()) == repr([{name: r[name] for name in schema_of(table).names} for r in rows])


def test_pandas_reads_all_runs_in_one_line_even_if_a_column_of_a_run_is_null(store: Store) -> None:
    known = row("cells", SECOND, model="toy", error="boom", pte_bytes=7, latency_p50_ms=0.5, qnn="v2.49")
    write(store, FIRST, "cells", [row("cells", FIRST)])
    write(store, SECOND, "cells", [known])
    write(store, "20261122T020000Z-e5f6", "cells", [])

    frame = pandas.read_parquet(store.root / "tables/cells")

    assert list(frame.columns) == [*schema_of("cells").names, "run"]
    assert list(frame["run_id"]) == list(frame["run"]) == [FIRST, SECOND]
    assert {name: frame.iloc[1][name] for name in known if known[name] is not None} == {
        name: value for name, value in known.items() if value is not None
    }
    assert frame.iloc[0].notna().sum() == 2


def test_runs_named_by_digits_alone_are_read_too(store: Store) -> None:
    for run_id in ("20261120020000", "20261121020000"):
        write(store, run_id, "cells", [row("cells", run_id)])
    frame = pandas.read_parquet(store.root / "tables/cells")
    assert list(frame["run_id"]) == ["20261120020000", "20261121020000"]


def test_rows_are_those_of_one_run_with_exactly_the_columns(store: Store) -> None:
    write(store, SECOND, "outputs", [row("outputs", SECOND, sample=2), row("outputs", SECOND, sample=1)])
    write(store, FIRST, "outputs", [row("outputs", FIRST, shape=(1, 10), status="compared")])

    assert tables.rows(store, "outputs", FIRST) == [row("outputs", FIRST, shape=[1, 10], status="compared")]
    assert [list(row) for row in tables.rows(store, "outputs", SECOND)] == [schema_of("outputs").names] * 2
    assert [row["sample"] for row in tables.rows(store, "outputs", SECOND)] == [2, 1]


def test_a_run_of_an_earlier_version_has_no_rows_of_a_later_table(store: Store) -> None:
    write(store, FIRST, "cells", [row("cells", FIRST)])
    assert tables.rows(store, "profile", FIRST) == []


def test_a_run_without_rows_is_a_run(store: Store) -> None:
    write(store, FIRST, "cells", [])
    assert tables.runs(store) == [FIRST]
    assert tables.rows(store, "cells", FIRST) == []


def test_runs_are_those_that_have_their_cells_oldest_first(store: Store) -> None:
    assert tables.runs(store) == []
    write(store, SECOND, "cells", [])
    write(store, FIRST, "cells", [])
    write(store, "20261122T020000Z-e5f6", "profile", [])
    (store.root / "tables" / "cells" / "run=broken").mkdir()
    assert tables.runs(store) == [FIRST, SECOND]


def test_an_unknown_run_is_refused_with_those_that_exist(store: Store) -> None:
    with pytest.raises(RequestError, match=r"^no run 'x' in .*/tables/cells; there is none$"):
        tables.rows(store, "cells", "x")
    write(store, FIRST, "cells", [])
    with pytest.raises(RequestError, match=rf"there are: {FIRST}$"):
        tables.rows(store, "cells", SECOND)


def test_a_second_write_replaces_the_first(store: Store) -> None:
    write(store, FIRST, "cells", [row("cells", FIRST), row("cells", FIRST)])
    write(store, FIRST, "cells", [row("cells", FIRST)])
    assert tables.rows(store, "cells", FIRST) == [row("cells", FIRST)]
    assert list(store.partial.iterdir()) == []


def test_nan_is_stored_as_null_in_numbers_and_in_lists(store: Store) -> None:
    path = write(store, FIRST, "operators", [row("operators", FIRST, mse=math.nan, scale=[0.5, np.float32("nan")])])
    with pq.ParquetFile(path) as file:
        (stored,) = file.read(columns=["mse", "scale"]).to_pylist()
    assert stored == {"mse": None, "scale": [0.5, None]}


@pytest.mark.parametrize("number", [math.inf, -math.inf, np.float32("inf")])
def test_an_infinite_number_is_refused_wherever_it_is(store: Store, number: float) -> None:
    with pytest.raises(ValueError, match=r"^operators\.snr_db is -?inf: no number in a table may be infinite$"):
        write(store, FIRST, "operators", [row("operators", FIRST, snr_db=number)])
    with pytest.raises(ValueError, match=r"^operators\.scale is -?inf: "):
        write(store, FIRST, "operators", [row("operators", FIRST, scale=[1.0, number])])
    with pytest.raises(ValueError, match=r"^deeper is -?inf: "):
        column([[[1.0, number]]], pa.list_(pa.list_(pa.float64())), "deeper")
    assert not (store.root / "tables").exists()


def test_numpy_scalars_and_integers_in_float_columns_are_converted(store: Store) -> None:
    values = {"sample": np.int64(3), "delegated": np.bool_(True), "mse": np.float32(0.5), "max_abs": 2, "shape": ()}
    path = write(store, FIRST, "operators", [row("operators", FIRST, **values)])
    with pq.ParquetFile(path) as file:
        (stored,) = file.read(columns=list(values)).to_pylist()
    assert stored == {"sample": 3, "delegated": True, "mse": 0.5, "max_abs": 2.0, "shape": []}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("sample", 1.5),
        ("sample", True),
        ("sample", "1"),
        ("mse", True),
        ("mse", "1"),
        ("delegated", 1),
        ("operator", b"add"),
        ("operator", 1),
        ("shape", {1}),
        ("shape", 1),
        ("source_nodes", "add"),
        ("shape", [1.0]),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_converted(store: Store, column: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^operators\.{column} holds .*, not the "):
        write(store, FIRST, "operators", [row("operators", FIRST, **{column: value})])


def test_a_row_must_have_exactly_the_columns(store: Store) -> None:
    odd = row("cells", FIRST, speed=1.0)
    del odd["model"]
    with pytest.raises(ValueError, match=r"^cells row 1 must have .*: missing \['model'\], unknown \['speed'\]$"):
        write(store, FIRST, "cells", [row("cells", FIRST), odd])


def test_a_row_of_another_run_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match=rf"^cells row 0 is of run '{SECOND}' and not of '{FIRST}'$"):
        write(store, FIRST, "cells", [row("cells", SECOND)])


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden", "a b", "a=b", "a\n"])
def test_a_run_id_that_is_no_file_name_is_refused(store: Store, run_id: str) -> None:
    with pytest.raises(ValueError, match=r"^a run id consists of letters"):
        write(store, run_id, "cells", [])


def test_an_unknown_table_is_refused_with_those_that_exist(store: Store) -> None:
    message = f"^there is no table 'cell': it is one of {', '.join(TABLES)}$"
    with pytest.raises(ValueError, match=message):
        write(store, FIRST, "cell", [])
    with pytest.raises(ValueError, match=message):
        tables.rows(store, "cell", FIRST)


def test_a_file_that_lacks_one_column_and_has_an_unknown_one_is_named_in_the_error(store: Store) -> None:
    path = write(store, FIRST, "cells", [])
    names = pq.read_schema(path).names
    renamed = pq.read_table(path).rename_columns([*names[:-1], "unknown"])
    path.write_bytes(tables.encoded(renamed.schema, [renamed]))
    with pytest.raises(EvidenceError, match=r"part\.parquet cannot be read, remove it to leave its run out: "):
        tables.rows(store, "cells", FIRST)


def test_a_column_that_a_run_of_an_earlier_version_lacks_is_null(store: Store) -> None:
    path = write(store, FIRST, "cells", [row("cells", FIRST, model="toy")])
    older = pq.read_table(path).drop_columns([schema_of("cells").names[-1]])
    path.write_bytes(tables.encoded(older.schema, [older]))
    assert tables.rows(store, "cells", FIRST) == [row("cells", FIRST, model="toy")]


def test_a_damaged_file_is_never_read(store: Store) -> None:
    path = write(store, FIRST, "cells", [])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(EvidenceError, match=r"part\.parquet is damaged, remove it to .*: its sha256 is "):
        tables.rows(store, "cells", FIRST)


def test_a_file_of_another_program_or_without_a_checksum_is_never_read(store: Store) -> None:
    path = write(store, FIRST, "cells", [])
    table = pq.read_table(path)
    for foreign in (pa.table({"run_id": [FIRST]}), table):
        pq.write_table(foreign.replace_schema_metadata(None), path)
        with pytest.raises(EvidenceError, match=r"part\.parquet cannot be read, .*: it has no checksum: "):
            tables.rows(store, "cells", FIRST)
    other = pa.table({"run_id": [FIRST]})
    path.write_bytes(tables.encoded(other.schema, [other]))
    with pytest.raises(EvidenceError, match=r"part\.parquet cannot be read, .*: not a table of cells"):
        tables.rows(store, "cells", FIRST)


def test_a_folder_that_cannot_be_written_is_reported_as_such(store: Store) -> None:
    (store.root / "tables").touch()
    with pytest.raises(EnvironmentUnusable, match=r"^artifacts: cannot use .*; there is a file of that name"):
        write(store, FIRST, "cells", [])


def test_a_table_as_tab_separated_text_keeps_whole_numbers_whole_lists_readable_and_null_empty(store: Store) -> None:
    full = row(
        "profile", FIRST, event="a\tb", count=3, p50=2.5, mean=2.0, raw=[1.0, 0.1], operators=["x"], delegate=True
    )
    write(store, FIRST, "profile", [full, row("profile", FIRST)])
    lines = list(csv.DictReader(io.StringIO(tables.tsv(store, "profile", FIRST)), delimiter="\t"))
    assert [{name: value for name, value in line.items() if value} for line in lines] == [
        {"run_id": FIRST, "event": "a\tb", "count": "3", "p50": "2.5", "mean": "2.0", "raw": "[1.0, 0.1]"}
        | {"operators": '["x"]', "delegate": "True"},
        {"run_id": FIRST},
    ]
