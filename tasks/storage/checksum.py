"""The checksum of a table's Parquet file, which the file itself contains in its footer.

Parquet's checksums of pages do not cover the headers and the footer, and most readers do not compare them.
The entry `qnnsweep.sha256` of the file's key-value metadata is therefore the sha256 of the whole file, in which the
checksum's own place has zeros. Other programs read such a file as any other Parquet file.
"""

import hashlib

_KEY = b"qnnsweep.sha256"
_ZEROS = b"0" * 64
_START = _KEY + b"\x18\x40"
"""The bytes before the checksum: its key, and Thrift's header of the next field, a string of 64 bytes."""

METADATA = {_KEY: _ZEROS}
"""The key-value metadata with which a file must be written before `with_checksum` can fill in its checksum."""


class ChecksumError(ValueError):
    """A file whose bytes are not those that were written."""


def with_checksum(data: bytes) -> bytes:
    """Return the bytes of a Parquet file, which was written with `METADATA`, with the checksum in its place."""
    start, end = _place(data)
    if data[start:end] != _ZEROS:
        raise ValueError("the bytes were not written with the metadata of a file without a checksum")
    return data[:start] + _digest(data, start, end) + data[end:]


def check(data: bytes) -> None:
    """Raise ChecksumError if the bytes of a Parquet file differ from those that `with_checksum` returned.

    Raises ValueError if they have no checksum: they are damaged, of an earlier version, or of another program.
    """
    start, end = _place(data)
    written, sha256 = data[start:end], _digest(data, start, end)
    if written != sha256:
        raise ChecksumError(f"its sha256 is {sha256.decode()} instead of {written.decode(errors='replace')}")


def _place(data: bytes) -> tuple[int, int]:
    """Return the start and the end of the checksum. Nothing that follows in the footer contains the text of a row."""
    start = data.rfind(_START) + len(_START)
    end = start + len(_ZEROS)
    if start < len(_START) or end > len(data):
        raise ValueError("it has no checksum: it is damaged, or of an earlier version, or of another program")
    return start, end


def _digest(data: bytes, start: int, end: int) -> bytes:
    sha256 = hashlib.sha256(memoryview(data)[:start])
    sha256.update(_ZEROS)
    sha256.update(memoryview(data)[end:])
    return sha256.hexdigest().encode()
