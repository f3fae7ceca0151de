"""The part of a backend that planning needs, and the import of a backend by its name.

`backend.kind` is one of `SHIPPED_BACKENDS`, or `package.module:Class` for a backend of another vendor. The class
extends `tasks.toolchain.backends.backend.Backend`; its module imports neither torch nor ExecuTorch.
"""

import importlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from conf.errors import RequestError, printable
from conf.names import SHIPPED_BACKENDS
from conf.schema import RunnerKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule of a backend that makes cells impossible: all cells whose scheme computes in one of `computes`.

    `computes`: `float32`, `float16` or members of ExecuTorch's QuantDtype without `use_`. A scheme's name is ignored.
    `others`: exclude instead all cells whose scheme does not compute in one of `computes`. `arch_below`: exclude only
    cells whose Hexagon architecture is older than this one; None excludes cells of every architecture.
    """

    computes: frozenset[str]
    others: bool = False
    arch_below: int | None = None
    reason: str
    evidence: str


class PlannedBackend(Protocol):
    """The part of a backend that planning needs."""

    @property
    def needs_soc(self) -> bool:
        """Whether the backend compiles a program for one SoC. Otherwise a program is the same for every SoC."""
        ...

    @property
    def socs(self) -> Collection[str] | None:
        """The names of the SoCs that the backend compiles for; None means any SoC."""
        ...

    @property
    def runners(self) -> Collection[RunnerKind]:
        """The runners that execute the backend's programs."""
        ...

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules that make cells impossible."""
        ...


def planned_backend(kind: str) -> PlannedBackend:
    return implementation(kind)


@cache
def implementation(kind: str) -> Any:
    """Return an instance of the backend. Raises RequestError, with a message of one line, if its import fails."""
    module, _, name = SHIPPED_BACKENDS.get(kind, kind).partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise RequestError(f"cannot be imported: {error}", key="backend.kind", value=printable(kind)) from error


def make_importable(folders: Sequence[Path]) -> None:
    """Add the folders of the user's own configuration to `sys.path`, so that their modules can be imported."""
    sys.path += [folder for folder in map(str, folders) if folder not in sys.path]
