"""A git clone of ExecuTorch as a user has it, reduced to the QNN backend: the installed files, with commits on top."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from qnnsweep.tasks.toolchain.prepared.overlay import BACKEND, installed_executorch

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


class Clone:
    """The clone. Its first commit has the installed files of the QNN backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        backend = installed_executorch() / BACKEND
        shutil.copytree(backend, folder / BACKEND, ignore=shutil.ignore_patterns("__pycache__", "*.so", "tests"))
        self._git("init", "--quiet")
        self.first = self.commit("the installed release")

    def commit(self, message: str, **replaced: tuple[str, str, str]) -> str:
        """Commit after replacements in files: (path in the backend, old text, new text). Return the commit's name."""
        for path, old, new in replaced.values():
            file = self.folder / BACKEND / path
            text = file.read_text()
            assert text.count(old) == 1, (path, old)
            file.write_text(text.replace(old, new))
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", message)
        return self._git("rev-parse", "HEAD").strip()

    def subject(self, name: str) -> str:
        """Return the first line of the message of a commit."""
        return self._git("log", "-1", "--format=%s", name).strip()

    def _git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.folder), *IDENTITY, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
