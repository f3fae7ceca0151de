"""A reader of untrusted flatbuffers, which checks every offset before it reads at that offset.

The `flatbuffers` package trusts its input: if an offset is wrong, it reads another field; if a string is truncated, it
returns the shorter string. Therefore its accessors are called only on checked positions, and the total number of bytes
that they read is limited.
"""

from collections.abc import Iterator, Mapping

from flatbuffers import number_types as flags
from flatbuffers.table import Table as Accessor

from qnnsweep.tasks.errors import EvidenceError

Schema = Mapping[str, tuple[str, ...]]
"""Maps a table's name to its fields in the schema's order: a flatbuffer stores indices in place of names."""

# Every byte of a regular file is read once, or a few times if strings are shared. Without this limit, a crafted file of
# a few kilobytes, in which many offsets lead to one table, would take hours to read.
_READS_PER_BYTE = 4


class _Source:
    """The bytes of one file, and the number of bytes that may still be read."""

    def __init__(self, data: memoryview, file_type: str, schema: Schema) -> None:
        self.data = data
        self.file_type = file_type
        self.schema = schema
        self._allowance = _READS_PER_BYTE * len(data)

    def refuse(self, path: str, problem: str) -> EvidenceError:
        return EvidenceError(f"not a readable {self.file_type}: {path}: {problem}")

    def require(self, position: int, size: int, path: str) -> None:
        if not 0 <= position <= len(self.data) - size:
            raise self.refuse(path, f"{size} bytes at {position} are outside the file's {len(self.data)}")

    def spend(self, size: int, path: str) -> None:
        self._allowance -= size
        if self._allowance < 0:
            raise self.refuse(path, "the same bytes are used repeatedly, which no writer does")


class Table:
    """One table of the file. Fields are read by name; an absent field has an empty value, None or the schema's default.

    Every method raises EvidenceError if the file is inconsistent. The message contains the field's path from the root.
    """

    __slots__ = ("_accessor", "_fields", "_path", "_source")

    def __init__(self, source: _Source, position: int, name: str, path: str) -> None:
        self._source, self._path, self._fields = source, path, source.schema[name]
        source.require(position, flags.SOffsetTFlags.bytewidth, path)
        self._accessor = accessor = Accessor(source.data, position)
        vtable = position - accessor.Get(flags.SOffsetTFlags, position)
        source.require(vtable, 4, path)
        vtable_size = accessor.Get(flags.VOffsetTFlags, vtable)
        if vtable_size < 4 or vtable_size % 2:
            raise source.refuse(path, f"its field table claims a size of {vtable_size} bytes")
        source.require(vtable, vtable_size, path)
        inline_size = accessor.Get(flags.VOffsetTFlags, vtable + 2)
        source.require(position, inline_size, path)
        source.spend(max(inline_size, 4), path)

    def path(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def refuse(self, field: str, problem: str) -> EvidenceError:
        """Return the error for a field that can be read but has an invalid value."""
        return self._source.refuse(self.path(field), problem)

    def number(self, field: str, kind: type, default: int | float = 0) -> int | float:
        """Return a scalar. `kind`: one of the flags of `flatbuffers.number_types`."""
        offset = self._offset(field, kind.bytewidth)
        return default if offset is None else self._accessor.Get(kind, self._accessor.Pos + offset)

    def integer(self, field: str, kind: type, default: int = 0) -> int:
        return int(self.number(field, kind, default))

    def text(self, field: str) -> str | None:
        if self._offset(field, 4) is None:
            return None
        try:
            return self.octets(field).decode()
        except UnicodeDecodeError as problem:
            raise self.refuse(field, f"is not UTF-8: {problem}") from problem

    def octets(self, field: str) -> bytes:
        start, length = self._vector(field, 1)
        return bytes(self._source.data[start : start + length])

    def integers(self, field: str, kind: type) -> tuple[int, ...]:
        start, length = self._vector(field, kind.bytewidth)
        return tuple(self._accessor.Get(kind, start + kind.bytewidth * index) for index in range(length))

    def table(self, field: str, name: str) -> "Table | None":
        offset = self._offset(field, 4)
        if offset is None:
            return None
        return Table(self._source, self._accessor.Indirect(self._accessor.Pos + offset), name, self.path(field))

    def tables(self, field: str, name: str) -> Iterator["Table"]:
        start, length = self._vector(field, 4)
        for index in range(length):
            position = self._accessor.Indirect(start + 4 * index)
            yield Table(self._source, position, name, f"{self.path(field)}[{index}]")

    def _offset(self, field: str, width: int) -> int | None:
        """Return the field's offset from the table's start, or None if it was not written."""
        offset = self._accessor.Offset(4 + 2 * self._fields.index(field))
        if offset == 0:
            return None
        # The table's size is no limit: Python's writer gives tables whose fields differ only in width one field table.
        self._source.require(self._accessor.Pos + offset, width, self.path(field))
        return offset

    def _vector(self, field: str, width: int) -> tuple[int, int]:
        """Return the position of a vector's first element and the vector's length, both checked; zeros if absent."""
        path, offset = self.path(field), self._offset(field, 4)
        if offset is None:
            return 0, 0
        start = self._accessor.Vector(offset)
        self._source.require(start - 4, 4, path)
        length = self._accessor.VectorLen(offset)
        self._source.require(start, length * width, path)
        self._source.spend(4 + length * width, path)
        return start, length


def read_root(data: bytes, *, file_type: str, identifier: bytes, schema: Schema, root: str, prefix: int = 4) -> Table:
    """Return the root table of a flatbuffer.

    `identifier`: empty if files of the type have none. `prefix`: the bytes of the prefix that has the size; 0 for a
    flatbuffer without one. Bytes after the prefixed size are ignored, because a runtime with a static buffer may write
    the whole buffer. Raises EvidenceError if `data` is truncated or is a file of another type.
    """
    start, end = prefix + 4, prefix + 8
    actual = bytes(data[start:end])
    if identifier and actual != identifier:
        raise EvidenceError(f"not a readable {file_type}: bytes {start} to {end} are {actual!r}, not {identifier!r}")
    present = len(data) - prefix
    size = int.from_bytes(data[:prefix], "little") if prefix else present
    if size > present:
        raise EvidenceError(f"not a readable {file_type}: {size} bytes announced, {present} present; it was cut short")
    source = _Source(memoryview(data)[prefix : prefix + size], file_type, schema)
    source.require(0, 8, "root")
    return Table(source, Accessor(source.data, 0).Indirect(0), root, "")
