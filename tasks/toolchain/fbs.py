"""The layouts of flatbuffers in the `.fbs` files of the installed ExecuTorch, and a decoder of checked flatbuffers.

ExecuTorch's packages are found, but not imported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flatbuffers import number_types as flags

from qnnsweep.tasks.toolchain.flatbuffer import Table, read_root

_COMMENT = re.compile(r"//[^\n]*")
_INCLUDE = re.compile(r'include\s+"([^"]+)"')
_BLOCK = re.compile(r"\b(table|enum|union)\s+(\w+)\s*(?::\s*(\w+))?\s*\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)(\w+)\]?\s*(?:=\s*(-?\w+))?\s*(\([^)]*\))?\s*;")
_ENTRY = re.compile(r"(\w+)\s*(?:=\s*(\d+)|:\s*(\w+))?\s*(?:,|$)")
_NUMBERS: Mapping[str, type] = {
    "bool": flags.BoolFlags, "byte": flags.Int8Flags, "ubyte": flags.Uint8Flags, "short": flags.Int16Flags,
    "ushort": flags.Uint16Flags, "int": flags.Int32Flags, "uint": flags.Uint32Flags, "long": flags.Int64Flags,
    "float": flags.Float32Flags, "double": flags.Float64Flags, "int64": flags.Int64Flags, "uint32": flags.Uint32Flags,
    "uint64": flags.Uint64Flags,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Field:
    name: str
    type: str
    is_vector: bool
    default: int
    is_read: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The tables, enumerations and unions of an `.fbs` file."""

    tables: Mapping[str, tuple[_Field, ...]]
    enums: Mapping[str, Mapping[int, str]]
    bases: Mapping[str, str]
    """Per enumeration, the type of its numbers."""
    unions: Mapping[str, tuple[tuple[str, str], ...]]
    """Per union, the names of its members and of their tables."""

    def read(self, data: bytes, root: str, *, file_type: str, identifier: bytes = b"") -> dict[str, Any]:
        """Return the root table of a flatbuffer as a mapping of its fields.

        A table is a mapping, a union a pair of the member's name and its table, an enumeration the name of its value, a
        vector of bytes `bytes`, another vector a tuple. What was not written is None, empty or the default.
        Raises EvidenceError if `data` is damaged or of another type.
        """
        schema = {name: tuple(field.name for field in fields) for name, fields in self.tables.items()}
        table = read_root(data, file_type=file_type, identifier=identifier, schema=schema, root=root, prefix=0)
        return self._decoded(table, root)

    def _decoded(self, table: Table, name: str) -> dict[str, Any]:
        return {field.name: self._value(table, field) for field in self.tables[name] if field.is_read}

    def _value(self, table: Table, field: _Field) -> Any:
        name, of = field.name, field.type
        if of in self.unions:
            return self._member(table, name, of)
        if of in self.enums:
            code = table.integer(name, _NUMBERS[self.bases[of]], field.default)
            if code not in self.enums[of]:
                raise table.refuse(name, f"{code} is no {of}")
            return self.enums[of][code]
        if field.is_vector:
            if of in self.tables:
                return tuple(self._decoded(element, of) for element in table.tables(name, of))
            return table.octets(name) if of == "ubyte" else table.integers(name, _NUMBERS[of])
        if of == "string":
            return table.text(name)
        if of in self.tables:
            child = table.table(name, of)
            return None if child is None else self._decoded(child, of)
        number = table.number(name, _NUMBERS[of], field.default)
        return bool(number) if of == "bool" else number

    def _member(self, table: Table, name: str, union: str) -> tuple[str, dict[str, Any]] | None:
        code, members = table.integer(f"{name}_type", flags.Uint8Flags), self.unions[union]
        if code == 0:
            return None
        if code > len(members):
            raise table.refuse(name, f"{code} is no {union}")
        member, of = members[code - 1]
        child = table.table(name, of)
        if child is None:
            raise table.refuse(name, "is missing")
        return member, self._decoded(child, of)


@cache
def layout(place: str) -> Layout:
    """Return the layout in a file of the package `executorch`."""
    spec = find_spec("executorch")
    assert spec is not None, "qnnsweep needs ExecuTorch"
    assert spec.submodule_search_locations, "it is a package"
    text = _text(Path(spec.submodule_search_locations[0], place))
    blocks = _BLOCK.findall(text)
    enums = {name: _codes(body) for kind, name, _, body in blocks if kind == "enum"}
    unions = {
        name: tuple((member, table or member) for member, _, table in _ENTRY.findall(body))
        for kind, name, _, body in blocks
        if kind == "union"
    }
    return Layout(
        tables={name: tuple(_fields(body, enums, unions)) for kind, name, _, body in blocks if kind == "table"},
        enums=enums,
        bases={name: base for kind, name, base, _ in blocks if kind == "enum"},
        unions=unions,
    )


def _text(file: Path) -> str:
    text = file.read_text()
    included = "".join(_text(file.with_name(name)) for name in _INCLUDE.findall(text))
    return included + _COMMENT.sub("", text)


def _codes(body: str) -> dict[int, str]:
    codes: dict[int, str] = {}
    for name, number, _ in _ENTRY.findall(body):
        codes[int(number) if number else max(codes, default=-1) + 1] = name
    return codes


def _fields(body: str, enums: Mapping[str, Mapping[int, str]], unions: Mapping[str, Any]) -> list[_Field]:
    fields: list[_Field] = []
    for name, bracket, of, default, attributes in _FIELD.findall(body):
        if of in unions:  # the member's number is a field of its own
            fields.append(_Field(name=f"{name}_type", type="ubyte", is_vector=False, default=0, is_read=False))
        by_name = {value: code for code, value in enums.get(of, {}).items()}
        number = by_name[default] if default in by_name else int(default or 0)
        is_read = "deprecated" not in attributes
        fields.append(_Field(name=name, type=of, is_vector=bool(bracket), default=number, is_read=is_read))
    return fields
