"""The row classes define every column, and what is generated from them is up to date."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from qnnsweep.tasks.records.cell_rows import CellIdentity
from qnnsweep.tasks.records.hints import Decibels
from qnnsweep.tasks.records.stages import Toolchain
from qnnsweep.tasks.records.tables import CELL_COLUMNS, TABLES, VERSION_COLUMNS, by_columns, columns

_SPEC = importlib.util.spec_from_file_location("generated_tables", Path(__file__).parents[2] / "docs" / "tables.py")
assert _SPEC is not None
assert _SPEC.loader is not None
generated = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generated)

CELL = CellIdentity(run_id="r", model="m", scheme=None, soc="s", device="d", backend="b", toolchain="t")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRow:
    cell: CellIdentity
    status: Literal["good", "bad"]
    """Documented."""
    toolchain: Toolchain | None
    loss: Decibels | None
    """Documented too,
    on two lines."""
    undocumented: tuple[float | None, ...]


@pytest.mark.parametrize("path", generated.files(), ids=lambda path: path.name)
def test_a_generated_file_is_what_make_docs_writes(path: Path) -> None:
    assert path.read_text() == generated.files()[path], "run `make docs`"


def test_a_record_in_a_row_stands_for_its_columns_in_its_place() -> None:
    names = [*CELL_COLUMNS, "status", *VERSION_COLUMNS, "loss", "undocumented"]
    assert [column.name for column in columns(SampleRow)] == names
    versions = Toolchain(python="3", torch="2", executorch="1", torchao="0", qnn="q", qnn_files="f", passes_off="p")
    row = SampleRow(cell=CELL, status="bad", toolchain=versions, loss=None, undocumented=(1.0,))
    version_values = ["3", "2", "1", "0", "q", "f", None, None, "p", None, None]
    values = ["r", "m", None, "s", "d", "b", "t", "bad", *version_values, None, (1.0,)]
    assert by_columns(row) == dict(zip(names, values, strict=True))
    absent = by_columns(SampleRow(cell=CELL, status="bad", toolchain=None, loss=2.0, undocumented=()))
    assert [absent[name] for name in ("status", *VERSION_COLUMNS, "loss")] == ["bad", *[None] * 11, 2.0]


def test_every_table_begins_with_the_cell() -> None:
    for kind in TABLES.values():
        assert tuple(column.name for column in columns(kind)[: len(CELL_COLUMNS)]) == CELL_COLUMNS


def test_a_column_is_described_by_its_type_its_unit_and_its_docstring() -> None:
    described = {column.name: column for column in columns(SampleRow)}
    assert generated.describe([described["status"]]) == "- `status` (string): Documented.\n"
    assert generated.describe([described["loss"]]) == "- `loss` (float, dB): Documented too, on two lines.\n"
    with pytest.raises(AssertionError, match=r"^SampleRow\.undocumented has no docstring$"):
        generated.describe([described["undocumented"]])
