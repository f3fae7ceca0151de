"""A run that is joined from the parts of its shards is the same as one that was written at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.storage.tables import schema_of
from tests.storage.conftest import StoreOf
from tests.storage.test_tables import FIRST, row, rows_of


@pytest.mark.parametrize("table", ["cells", "operators"])
@given(data=st.data())
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_the_rows_of_all_parts_are_joined_in_order_and_unchanged(store: Store, table: str, data: st.DataObject) -> None:
    given_rows: list[list[dict[str, Any]]] = data.draw(st.lists(rows_of(table), min_size=1, max_size=3))
    parts = [Store.at(f"{store.location}/parts/{number}") for number in range(len(given_rows))]
    for part, rows in zip(parts, given_rows, strict=True):
        tables.write(part, FIRST, table, rows)
    tables.join(store, FIRST, table, parts)
    joined = tables.rows(store, table, FIRST)
    assert repr(joined) == repr(
        [{name: row[name] for name in schema_of(table).names} for rows in given_rows for row in rows]
    )
    assert tables.runs(store) == ([FIRST] if table == "cells" else [])


def test_a_part_that_cannot_be_read_is_not_left_out(store: Store) -> None:
    part, damaged = (Store.at(f"{store.location}/parts/{name}") for name in ("whole", "damaged"))
    for store_of_part in (part, damaged):
        tables.write(store_of_part, FIRST, "cells", [row("cells", FIRST)])
    damaged.files.write(f"tables/cells/run={FIRST}/part.parquet", b"PAR1 and no more")
    with pytest.raises(EvidenceError, match=r"parts/damaged/.* cannot be read"):
        tables.join(store, FIRST, "cells", [part, damaged])
    assert tables.runs(store) == []


def test_the_folder_of_the_parts_can_be_removed_and_nothing_else_is(store_of: StoreOf) -> None:
    store = store_of("one")
    for name in ("runs/a/shards/0/tables/x", "runs/a/shards/1/tables/x", "runs/a/report.html"):
        store.files.write(name, b"bytes")
    store.files.remove_all("runs/a/shards")
    assert store.files.names("runs") == ["runs/a/report.html"]
