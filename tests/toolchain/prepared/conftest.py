"""An SDK of a user: the libraries of the installed release, with the layout of Qualcomm's SDK."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER, find_sdk

WHEELS = Path(__file__).parents[3] / ".venv" / "wheels"
"""The package of the release with the bridge, which `make test` downloads: see the Makefile."""


@pytest.fixture(scope="session")
def user_sdk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the SDK, and an environment in which its libraries find those that they link against."""
    root = tmp_path_factory.mktemp("sdk")
    installed = find_sdk({}, tmp_path_factory.mktemp("links"))
    for folder in ("lib/aarch64-android", "include", LIBRARY_FOLDER):
        (root / folder).mkdir(parents=True)
    for library in sorted((installed.root / LIBRARY_FOLDER).iterdir()):
        (root / LIBRARY_FOLDER / library.name).symlink_to(library.resolve())
    search = os.pathsep.join(map(str, installed.runtime_libraries))
    return root, dict(os.environ) | {"LD_LIBRARY_PATH": search}
