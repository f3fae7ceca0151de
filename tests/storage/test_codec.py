"""A record is decoded exactly as it was encoded, and damaged or foreign bytes are refused."""

from __future__ import annotations

import io
import math
import pickle
import types
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnsweep.tasks import records
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob, Counterpart, Gap, LoweredProgram, Operator, Quantization, TensorSpec
from qnnsweep.tasks.storage.codec import decode, encode, is_encoding_of
from qnnsweep.tasks.storage.digest import digest

RECORDS = [kind for kind in vars(records).values() if isinstance(kind, type) and is_dataclass(kind)]
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=8),
    types.NoneType: st.none(),
}


@cache
def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for small values of a type hint that Parquet can store: integers have 64 bits."""
    if kind in SCALARS:
        return SCALARS[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{field.name: any_of(hints[field.name]) for field in fields(kind)})
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of([any_of(argument) for argument in get_args(kind)])
    item, _ = get_args(kind)
    return st.lists(any_of(item), max_size=2).map(tuple)


def operator(**changes: Any) -> Operator:
    plain = Operator(
        index=0,
        name="add",
        target="aten.add.Tensor",
        debug_handle=None,
        output_index=0,
        source_nodes=(),
        module_path="",
        stack_trace="",
        shape=None,
        dtype=None,
        quantization=None,
        axis_order=None,
        subgraph=0,
        constant=False,
        unused=False,
    )
    return replace(plain, **changes)


def test_the_encoding_of_a_record_is_that_of_no_other() -> None:
    assert not is_encoding_of(encode(operator()), operator(name="mul"))
    assert not is_encoding_of(encode(Blob(sha256="", size=1)), Blob(sha256="", size=2))
    assert not is_encoding_of(b"", Blob(sha256="", size=1))


def test_a_literal_is_checked_when_it_is_written_and_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"Counterpart\.status is the str 'no_nod': it must be one of compared"):
        encode(Counterpart(nodes=(), status="no_nod"))  # pyright: ignore[reportArgumentType]

    def version(words: Any) -> type[Any]:
        return make_dataclass("Judged", [("status", words)], frozen=True, namespace={"__module__": records.__name__})

    earlier, later = version(Literal["met", "unread"]), version(Literal["met", "differs"])
    monkeypatch.setattr(records, "Judged", earlier, raising=False)
    met, unread = encode(earlier(status="met")), encode(earlier(status="unread"))
    monkeypatch.setattr(records, "Judged", later)
    assert decode(met) == later(status="met")
    with pytest.raises(EvidenceError, match="'unread' is not one of this version's met, differs"):
        decode(unread)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_record_is_decoded_exactly_and_always_gives_the_same_bytes(kind: type, data: st.DataObject) -> None:
    record = data.draw(any_of(kind))
    encoded = encode(record)
    assert encoded == encode(record)
    assert encoded.startswith(b"PAR1")
    decoded = decode(encoded)
    assert decoded == record
    assert is_encoding_of(encoded, decoded)
    # Equality alone would let 1 pass for True and 0.0 for -0.0.
    assert repr(decoded) == repr(record)


@pytest.mark.parametrize(
    "record",
    [
        operator(),
        operator(shape=(), axis_order=(0, 2, 3, 1)),
        operator(
            quantization=Quantization(
                scale=(0.1, 1e-300), zero_point=(), axis=1, quant_min=-(2**63), quant_max=2**63 - 1, dtype="int8"
            )
        ),
        Gap(),
        Gap(mse=math.inf, snr_db=-0.0, cosine=5e-324),
        TensorSpec(name="µ\x00", shape=(), dtype=""),
    ],
)
def test_none_and_empty_values_are_distinguished(record: object) -> None:
    assert repr(decode(encode(record))) == repr(record)


def test_nan_is_decoded_as_nan() -> None:
    decoded = decode(encode(Gap(mse=math.nan)))
    assert isinstance(decoded, Gap)
    assert decoded.mse is not None
    assert math.isnan(decoded.mse)


def test_bytes_and_dicts_of_strings_can_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Facts:
        raw: bytes
        environment: dict[str, str]
        more: dict[str, str] | None

    Facts.__module__ = records.__name__
    Facts.__annotations__ = {"raw": bytes, "environment": dict[str, str], "more": dict[str, str] | None}
    monkeypatch.setattr(records, "Facts", Facts, raising=False)
    for record in (
        Facts(raw=b"\x00\xff", environment={"b": "1", "a": ""}, more=None),
        Facts(raw=b"", environment={}, more={"c": "2"}),
    ):
        assert decode(encode(record)) == record


def test_any_parquet_reader_can_read_a_record() -> None:
    frame = pandas.read_parquet(io.BytesIO(encode(TensorSpec(name="x", shape=(1, 3), dtype="float32"))))
    assert {name: list(column) for name, column in frame.items()} == {
        "name": ["x"],
        "shape": [pytest.approx([1, 3])],
        "dtype": ["float32"],
    }


def test_a_numpy_float_is_decoded_as_a_float() -> None:
    gap = Gap(mse=np.float64(0.1))
    decoded = decode(encode(gap))
    assert decoded == gap
    assert digest(decoded) == digest(gap)
    assert repr(decoded) == repr(Gap(mse=0.1))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Gap(mse=1), "Gap.mse is the int 1: it must be float"),
        (Blob(sha256="", size=True), "Blob.size is the bool True: it must be int"),
        (Blob(sha256="", size=np.int64(1)), "Blob.size is the int64 np.int64(1): it must be int"),  # type: ignore[arg-type]
        (Blob(sha256=None, size=1), "Blob.sha256 is the NoneType None: it must be str"),  # type: ignore[arg-type]
        (operator(shape=[1]), "Operator.shape is the list [1]: it must be tuple"),
        (operator(shape=(1, 2.0)), "Operator.shape[1] is the float 2.0: it must be int"),
        (operator(quantization=Gap()), "Operator.quantization is the Gap Gap(mse=None"),
    ],
)
def test_a_value_that_would_change_is_refused_with_its_field(record: object, message: str) -> None:
    with pytest.raises(TypeError) as refused:
        encode(record)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("record", [Blob(sha256="", size=2**63), Blob(sha256="\ud800", size=1)])
def test_a_value_that_parquet_cannot_store_is_refused(record: Blob) -> None:
    with pytest.raises(ValueError, match=r"^Blob cannot be stored: "):
        encode(record)


@pytest.mark.parametrize("value", [1, "Blob", {"sha256": "", "size": 1}, None, Blob])
def test_only_records_are_encoded(value: object) -> None:
    with pytest.raises(TypeError, match=r"is not a record of qnnsweep\.tasks\.records"):
        encode(value)


def test_a_type_that_is_not_a_record_is_never_built() -> None:
    for name in ("annotations", "dataclass", "IDENTITY_NEUTRAL", "Any", "__name__", "Nobody"):
        forged = pa.table({"sha256": ["a"], "size": [1]}).replace_schema_metadata({"qnnsweep.record": name})
        sink = io.BytesIO()
        pq.write_table(forged, sink)
        with pytest.raises(EvidenceError, match=rf"{name} is not a record of qnnsweep\.tasks\.records"):
            decode(sink.getvalue())


def test_a_record_of_another_version_is_refused() -> None:
    old = pa.table({"sha256": ["a"]}).replace_schema_metadata({"qnnsweep.record": "Blob"})
    sink = io.BytesIO()
    pq.write_table(old, sink)
    with pytest.raises(EvidenceError, match="the fields are those of another version's Blob"):
        decode(sink.getvalue())


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_table_that_is_no_record_is_refused(rows: int) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"sha256": ["a"] * rows}), sink)
    with pytest.raises(EvidenceError, match="not one record but a table"):
        decode(sink.getvalue())


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"{}", pickle.dumps(Blob(sha256="a", size=1))])
def test_bytes_that_are_no_parquet_are_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError, match="these bytes are no readable record, remove the file"):
        decode(data)


@given(any_of(LoweredProgram), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_damaged_byte_or_a_lost_end_never_gives_another_record(record: LoweredProgram, data: st.DataObject) -> None:
    encoded = encode(record)
    for _ in range(20):
        damaged = bytearray(encoded)
        position = data.draw(st.integers(0, len(encoded) - 1))
        damaged[position] ^= data.draw(st.integers(1, 255))
        for candidate in (bytes(damaged), encoded[:position]):
            try:
                decoded = decode(candidate)
            except EvidenceError:
                continue
            assert repr(decoded) == repr(record)
