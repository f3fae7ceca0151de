"""The part of a backend that planning needs, and the import of a backend by its name.

`backend.kind` is one of `SHIPPED_BACKENDS`, or `package.module:Class` for a backend of another vendor. Every
backend class extends `qnnsweep.tasks.toolchain.backends.backend.Backend`. Importing the module
of a backend class imports neither torch nor ExecuTorch.
"""

import importlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from qnnsweep.conf.devices import RunnerKind
from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.names import SHIPPED_BACKENDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule by which a backend excludes cells: a cell is impossible if its scheme computes in one of `computes`.

    `computes`: float32, float16 or members of ExecuTorch's QuantDtype without the prefix `use_`. `others`: if True, the
    rule is inverted: it excludes the cells whose scheme computes in a type that is not in `computes`. A scheme with
    overrides computes in several types. `arch_below`: the rule excludes only cells whose Hexagon architecture is older
    than `arch_below`. None means every architecture. `of_compiler`: whether the limit is one of the vendor's compiler,
    so that another release may not have it. With `try_impossible`, such a rule excludes nothing.
    """

    computes: frozenset[str]
    others: bool = False
    arch_below: int | None = None
    of_compiler: bool = False
    reason: str
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRule:
    """A rule about operators whose values have 16 bits: an older architecture than `arch_below` does not run them.

    `targets`: their names in the edge program. `reason` and `remedy` are for the message of a cell that fails.
    """

    targets: frozenset[str]
    arch_below: int
    reason: str
    remedy: str
    evidence: str


class PlannedBackend(Protocol):
    """The part of a backend that planning needs."""

    @property
    def needs_soc(self) -> bool:
        """Whether the backend compiles each program for one SoC. If False, one program is valid for every SoC."""
        ...

    @property
    def socs(self) -> Collection[str] | None:
        """The names of the SoCs that the backend compiles for; None means any SoC."""
        ...

    @property
    def runners(self) -> Collection[RunnerKind]:
        """The runners that can execute the backend's programs."""
        ...

    @property
    def prepared_toolchains(self) -> bool:
        """Whether a toolchain that `qnnsweep toolchain add` prepared has the backend's compiler and runtime."""
        ...

    @property
    def overrides(self) -> bool:
        """Whether schemes can have overrides."""
        ...

    @property
    def simulating_runners(self) -> Collection[RunnerKind]:
        """Those of `runners` that simulate the accelerator, unless a device with an SoC runs its own.

        Times of a simulation say nothing about a device. ExecuTorch's Python runner is for x86_64 only.
        """
        ...

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules that make cells impossible."""
        ...

    @property
    def operator_rules(self) -> Sequence[OperatorRule]:
        """The rules about operators, which explain why a cell failed."""
        ...


def planned_backend(kind: str) -> PlannedBackend:
    return implementation(kind)


@cache
def implementation(kind: str) -> Any:
    """Return an instance of the backend `kind`. Raises RequestError if the class cannot be imported."""
    module, _, name = SHIPPED_BACKENDS.get(kind, kind).partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise RequestError(f"cannot be imported: {error}", key="backend.kind", value=printable(kind)) from error


def make_importable(folders: Sequence[Path]) -> None:
    """Add the folders of the user's own configuration to `sys.path`, so that their modules can be imported."""
    sys.path += [folder for folder in map(str, folders) if folder not in sys.path]
