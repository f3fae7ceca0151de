"""What the formats for other tools have in common: the name of a cell, its seconds and the problem that it has."""

from collections.abc import Mapping
from typing import Any

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import Outcome

STAGE_SECONDS = ("export_s", "quantize_s", "edge_s", "lower_s", "execute_s")


def scheme_and_place(cell: Row) -> str:
    """Return a cell's name without its model, as in `8a8w/SM8650/qnn/local` or `8a8w/SM8650/qnn-2.51/qnn/local`."""
    names = ("scheme", "soc", *other_toolchain(cell), "backend", "device")
    return "/".join(str(cell[name] or "-") for name in names)


def other_toolchain(cell: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the cell's toolchain, as an entry of a dict; nothing for the default toolchain."""
    name = cell["toolchain"]
    return {} if name in (None, DEFAULT_TOOLCHAIN) else {"toolchain": name}


def name(cell: Row) -> str:
    """Return a cell's name, as in `digits_cnn/8a8w/SM8650/qnn/local`."""
    return f"{cell['model'] or '-'}/{scheme_and_place(cell)}"


def seconds(cell: Row) -> float:
    """Return the time that all stages of a cell took. Cells that shared a stage count it in full."""
    return sum(cell[column] or 0.0 for column in STAGE_SECONDS)


def outcome(cell: Row) -> Outcome:
    return cell["outcome"]


def problem(cell: Row) -> str:
    """Return why a cell did not pass, in one text."""
    parts = (cell["error"], cell["reason"], cell["diagnosis"] if outcome(cell) == "out_of_tolerance" else None)
    return "\n".join(dict.fromkeys(part for part in parts if part)) or outcome(cell)
