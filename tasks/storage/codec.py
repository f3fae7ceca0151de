"""Records as Parquet files of one row, with columns derived from the type hints of the record.

Every value is read back exactly as it was written. A value that would change, such as an integer in a float field,
causes an error.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from qnnsweep.tasks import records
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records.hints import element, optional
from qnnsweep.tasks.storage.columns import ARROW_TYPES

_RECORD = b"qnnsweep.record"
_CHECKSUM = b"qnnsweep.checksum"
_SCALARS: dict[type, pa.DataType] = ARROW_TYPES | {bytes: pa.binary()}
_UNREADABLE = "these bytes are no readable record, remove the file they came from and run again"


class OtherVersionError(EvidenceError):
    """A record whose fields are those of another version of qnnsweep."""


def encode(record: object) -> bytes:
    """Return a record of `qnnsweep.tasks.records` as a Parquet file of one row. Equal records give equal bytes.

    Raises TypeError, with the field's name, for a value that is not of its field's type, and ValueError for an integer
    beyond 64 bits or text that is not Unicode.
    """
    name = type(record).__name__
    form = _form(_record_type(name))
    plain = form.dump(record, name)
    metadata = {_RECORD: name.encode(), _CHECKSUM: _checksum(plain)}
    try:
        table = pa.Table.from_pylist([plain], schema=_schema(name).with_metadata(metadata))
    except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid) as error:
        raise ValueError(f"{name} cannot be stored: {error}") from error
    sink = pa.BufferOutputStream()
    # One row with hundreds of columns: a column's dictionary and statistics would be larger than its value.
    pq.write_table(table, sink, compression="snappy", use_dictionary=False, write_statistics=False)
    return sink.getvalue().to_pybytes()


def decode(data: bytes) -> object:
    """Return the record that `encode` encoded. Only records of `qnnsweep.tasks.records` are ever instantiated.

    Raises EvidenceError if the bytes are damaged, are not a record, or are of another version of the record.
    """
    try:
        # Not `read_table`, which takes twice as long because it supports folders of files.
        table = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
        table.validate(full=True)
        rows = table.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EvidenceError(f"{_UNREADABLE}: {error}") from error
    metadata = table.schema.metadata or {}
    if _RECORD not in metadata or len(rows) != 1:
        raise EvidenceError(f"{_UNREADABLE}: not one record but a table")
    try:
        name = metadata[_RECORD].decode()
        form = _form(_record_type(name))
    except (UnicodeDecodeError, TypeError) as error:
        raise EvidenceError(f"{_UNREADABLE}: {error}") from error
    if not table.schema.equals(_schema(name)):
        raise OtherVersionError(f"{_UNREADABLE}: the fields are those of another version's {name}")
    if metadata.get(_CHECKSUM) != _checksum(rows[0]):
        raise EvidenceError(f"{_UNREADABLE}: the content is not what was written")
    return form.load(rows[0])


def is_encoding_of(data: bytes, record: object) -> bool:
    """Return whether `data` encodes `record`. The function only searches `data` for the record's checksum."""
    name = type(record).__name__
    return _checksum(_form(_record_type(name)).dump(record, name)) in data


@dataclass(frozen=True, slots=True)
class _Form:
    """The Arrow type for one type hint, and the conversions of values to and from this type."""

    arrow: pa.DataType
    dump: Callable[[Any, str], Any]
    """Convert a value for Arrow. The second argument is the field's name for an error message."""
    load: Callable[[Any], Any]
    """Convert a value from Arrow."""
    nullable: bool = False


def _record_type(name: str) -> type[Any]:
    kind = getattr(records, name, None)
    if isinstance(kind, type) and is_dataclass(kind):
        return kind
    raise TypeError(f"{name} is not a record of {records.__name__}")


@cache
def _schema(name: str) -> Any:
    return pa.schema(list(_form(_record_type(name)).arrow))


@cache
def _form(kind: Any) -> _Form:
    if kind in _SCALARS:
        return _scalar(kind)
    inner, nullable = optional(kind)
    if nullable:
        return _optional(_form(inner))
    if (item := element(kind)) is not None:
        return _sequence(_form(item))
    if kind == dict[str, str]:
        return _mapping()
    if get_origin(kind) is Literal:
        return _literal(get_args(kind))
    if isinstance(kind, type) and is_dataclass(kind):
        return _structure(kind)
    raise TypeError(f"{kind} has no Parquet form: use a record, tuple[T, ...], dict[str, str], a plain type or None")


def _scalar(kind: type) -> _Form:
    def dump(value: Any, where: str) -> Any:
        # A NumPy float64 is a float and equals the float that is read back. True is an int, but 1 would be read back.
        if type(value) is kind or (kind is float and isinstance(value, float)):
            return kind(value)
        raise _mismatch(value, where, kind.__name__)

    return _Form(_SCALARS[kind], dump, lambda value: value)


def _literal(choices: tuple[Any, ...]) -> _Form:
    def dump(value: Any, where: str) -> str:
        if value in choices:
            return str(value)
        raise _mismatch(value, where, f"one of {', '.join(choices)}")

    def load(value: str) -> str:
        if value in choices:
            return value
        raise EvidenceError(f"{_UNREADABLE}: {value!r} is not one of this version's {', '.join(choices)}")

    return _Form(pa.string(), dump, load)


def _optional(inner: _Form) -> _Form:
    return _Form(
        inner.arrow,
        lambda value, where: None if value is None else inner.dump(value, where),
        lambda value: None if value is None else inner.load(value),
        nullable=True,
    )


def _sequence(item: _Form) -> _Form:
    def dump(value: Any, where: str) -> list[Any]:
        if not isinstance(value, tuple):
            raise _mismatch(value, where, "tuple")
        return [item.dump(element, f"{where}[{index}]") for index, element in enumerate(value)]

    arrow = pa.list_(pa.field("element", item.arrow, nullable=item.nullable))
    return _Form(arrow, dump, lambda value: tuple(item.load(element) for element in value))


def _mapping() -> _Form:
    text = _form(str)

    def dump(value: Any, where: str) -> list[tuple[str, str]]:
        if not isinstance(value, dict):
            raise _mismatch(value, where, "dict")
        return [(text.dump(k, f"a key of {where}"), text.dump(v, f"{where}[{k!r}]")) for k, v in value.items()]

    arrow = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    return _Form(arrow, dump, dict)


def _structure(kind: type[Any]) -> _Form:
    hints = get_type_hints(kind)
    forms = {field.name: _form(hints[field.name]) for field in fields(kind)}

    def dump(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not kind:
            raise _mismatch(value, where, kind.__name__)
        return {name: form.dump(getattr(value, name), f"{where}.{name}") for name, form in forms.items()}

    def load(value: Any) -> Any:
        return kind(**{name: form.load(value[name]) for name, form in forms.items()})

    arrow = pa.struct([pa.field(name, form.arrow, nullable=form.nullable) for name, form in forms.items()])
    return _Form(arrow, dump, load)


def _mismatch(value: object, where: str, expected: str) -> TypeError:
    return TypeError(f"{where} is the {type(value).__name__} {value!r:.80}: it must be {expected}")


def _checksum(plain: Any) -> bytes:
    """Return the sha256 of the row's `repr`. It is stored because Parquet's checksums do not cover a file's footer."""
    return hashlib.sha256(repr(plain).encode("utf-8", "surrogatepass")).hexdigest().encode()
