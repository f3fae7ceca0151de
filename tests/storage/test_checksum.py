"""A damaged table is never read as other rows, and a table with a checksum is an ordinary Parquet file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.checksum import METADATA, check, with_checksum
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store
from tests.storage.conftest import StoreOf
from tests.storage.test_tables import FIRST, SECOND, row, write

ROW = row("trends", FIRST, model="toy", value=3.5, nights=7, runs=[SECOND], values=[3.5, None])


def test_no_single_flipped_bit_is_read(store: Store) -> None:
    path = write(store, FIRST, "trends", [ROW])
    whole = path.read_bytes()
    checksum = range(whole.rindex(b"qnnsweep.sha256") - 2, whole.rindex(b"qnnsweep.sha256") + 85)
    # All bits of the checksum and of its key, and one bit of every other byte.
    bits = [bit for bit in range(8 * len(whole)) if bit // 8 in checksum or bit % 8 == bit // 8 % 8]
    with path.open("r+b", buffering=0) as file:
        for byte, bit in (divmod(bit, 8) for bit in bits):
            file.seek(byte)
            file.write(bytes([whole[byte] ^ 1 << bit]))
            with pytest.raises(EvidenceError, match=r"part\.parquet (is damaged|cannot be read), remove it to leave"):
                tables.rows(store, "trends", FIRST)
            file.seek(byte)
            file.write(whole[byte : byte + 1])
    assert tables.rows(store, "trends", FIRST) == [ROW]


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_is_selected(store: Store, data: st.DataObject) -> None:
    path = write(store, FIRST, "trends", [ROW])
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=20)) + whole[end:]
    path.write_bytes(damaged)
    problems: set[str] = set()
    selected = select(store, "trends", ["model", "value"], problems=problems)
    assert (selected, len(problems)) == (([{"model": "toy", "value": 3.5}], 0) if damaged == whole else ([], 1))


def test_a_row_that_contains_the_text_of_a_checksum_is_stored_exactly(store: Store) -> None:
    text = "qnnsweep.sha256\x18\x40" + "0" * 64
    path = write(store, FIRST, "trends", [row("trends", FIRST, model=text, changed=[text])])
    assert text.encode() in path.read_bytes()
    assert tables.rows(store, "trends", FIRST) == [row("trends", FIRST, model=text, changed=[text])]


def test_the_checksum_is_the_sha256_of_the_file_with_zeros_in_its_place(store: Store) -> None:
    path = write(store, FIRST, "trends", [ROW])
    checksum = pq.read_metadata(path).metadata[b"qnnsweep.sha256"]
    assert checksum.decode() == hashlib.sha256(path.read_bytes().replace(checksum, b"0" * 64)).hexdigest()


def test_other_programs_read_the_file_as_any_parquet_file(store: Store) -> None:
    path = write(store, FIRST, "trends", [ROW])
    write(store, SECOND, "trends", [ROW | {"run_id": SECOND, "value": 4.0}])
    assert list(pandas.read_parquet(path)["value"]) == [3.5]
    folder = store.root / "tables" / "trends"
    assert list(pandas.read_parquet(folder)["value"]) == [3.5, 4.0]
    assert ds.dataset(folder, partitioning="hive").count_rows() == 2
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        assert file.read().column_names == tables.schema_of("trends").names


def test_a_table_that_was_read_can_be_encoded_again(store: Store) -> None:
    rows = pq.read_table(write(store, FIRST, "trends", [ROW]))
    data = tables.encoded(rows.schema, [rows, rows])
    check(data)
    assert pq.read_table(pa.BufferReader(data)).num_rows == 2


def test_bytes_without_the_place_of_a_checksum_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^it has no checksum"):
        with_checksum(b"PAR1")
    for metadata in ({}, {b"qnnsweep.sha256": b"1" * 64}):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), sink, store_schema=False)
        with pytest.raises(ValueError, match=r"^(it has no checksum|the bytes were not written with)"):
            with_checksum(sink.getvalue().to_pybytes())
    assert METADATA == {b"qnnsweep.sha256": b"0" * 64}


def test_a_damaged_copy_of_a_sound_object_does_not_hide_the_rows(bucket: StoreOf, tmp_path: Path) -> None:
    store = bucket("here")
    tables.write(store, FIRST, "trends", [ROW])
    assert select(store, "trends", ["model"]) == [{"model": "toy"}]
    (copy,) = (store.root / "copies").rglob("part.parquet")
    stat, whole = copy.stat(), bytearray(copy.read_bytes())
    whole[100] ^= 1
    copy.write_bytes(whole)
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert store.files.local(copy.relative_to(store.root / "copies").as_posix()).read_bytes() == whole
    assert select(store, "trends", ["model"]) == [{"model": "toy"}]
    store.files.write(copy.relative_to(store.root / "copies").as_posix(), bytes(whole))
    with pytest.raises(EvidenceError, match=r"^s3://.*part\.parquet is damaged"):
        select(store, "trends", ["model"])
