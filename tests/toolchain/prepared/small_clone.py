"""A git clone whose folder of the QNN backend has one file. No toolchain can be prepared from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from qnnsweep.tasks.toolchain.prepared.overlay import BACKEND
from tests.toolchain.prepared.executorch_clone import IDENTITY


class SmallClone:
    """The clone. Its branch `main` has the commits, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / BACKEND).mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commits: list[str] = []

    def commit(self, message: str, file: str = str(BACKEND / "a.py")) -> str:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(message)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        self.commits.append(self.git("rev-parse", "HEAD"))
        return self.commits[-1]

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.folder), *IDENTITY, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
