"""Copies of the project's files that a test may change, although the checkout may be read-only."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path


def copy_folder(source: Path, target: Path) -> Path:
    """Copy a folder without what Python and a build leave in it, and return the copy."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(source, target, ignore=ignored, symlinks=True)
    for path in (target, *target.rglob("*")):
        _make_writable(path)
    return target


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, or a symbolic link as such. `target`: the file or its folder."""
    _make_writable(Path(shutil.copy(source, target, follow_symlinks=False)))


def _make_writable(path: Path) -> None:
    if not path.is_symlink():
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
