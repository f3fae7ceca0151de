"""The schema of a toolchain, and the folder of the toolchains that `qnnsweep toolchain add` prepared."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from qnnsweep.conf.constraints import not_blank

DEFAULT_TOOLCHAIN = "default"
"""The name of the toolchain of this Python environment."""
TOOLCHAINS_VARIABLE = "QNNSWEEP_TOOLCHAINS"
KEYS = ("qnn", "executorch", "passes_off", "operators_skipped")
"""What `qnnsweep toolchain add` can change in a toolchain."""
LONGEST_NAME = 60
NAME_FORM = f"letters, digits and . _ -, at most {LONGEST_NAME}, the first a letter or a digit"


@dataclass(kw_only=True, slots=True)
class ToolchainConfig:
    name: str = DEFAULT_TOOLCHAIN
    folder: Annotated[str, not_blank("a folder that `qnnsweep toolchain add` prepared, or null")] | None = None
    """The folder that `qnnsweep toolchain add` prepared. null is the toolchain of this Python environment."""


def toolchains_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of prepared toolchains. Its subfolder `toolchain` has one option of the group per toolchain."""
    if chosen := environ.get(TOOLCHAINS_VARIABLE):
        return Path(chosen).expanduser().absolute()
    return caches_folder(environ) / "toolchains"


def caches_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of what only this user of this machine has: code and libraries are never in a store."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "qnnsweep"


def is_toolchain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name) is not None
