"""The folder of a cell's files below a run's `files`."""

import hashlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from qnnsweep.conf.names import AXES
from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN

_LONGEST_NAME = 255
"""The maximum number of bytes in the name of a file on Linux. An escaped name is ASCII."""


def cell_folder(names: Sequence[str]) -> str:
    """Return a path whose components are the names of the cell: model, scheme, SoC, backend, and device or farm.

    `names`: in the order of `qnnsweep.conf.names.AXES`. A toolchain other than the default is a component after
    the SoC, with `@` before its name. No other component contains an `@`.
    """
    model, scheme, soc, toolchain, *others = names
    at = [] if toolchain == DEFAULT_TOOLCHAIN else [_component(toolchain, before="@")]
    return "/".join([*map(_component, (model, scheme, soc)), *at, *map(_component, others)])


def _component(name: str, *, before: str = "") -> str:
    """Return `name` with escapes for what a path cannot contain, shortened with a hash if it is too long for a file."""
    quoted = before + quote(name, safe=" ")
    quoted = quoted.replace(".", "%2E") if quoted.startswith(".") else quoted
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    tail = "-" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return quoted[: _LONGEST_NAME - len(tail)] + tail


def folder_of(cell: Mapping[str, str | None]) -> str:
    """Return the folder of the cell that has this row in the table `cells`."""
    where = cell["farm"] or cell["device"]
    return cell_folder([*(cell[name] or "" for name in AXES[:-1]), where or ""])
