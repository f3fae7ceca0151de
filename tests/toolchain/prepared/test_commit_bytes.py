"""The files of a commit are the bytes of its objects: nothing of the clone runs, and nothing changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.tasks.toolchain.prepared.overlay import BACKEND, ToolchainUnusable, commit_files, installed_executorch
from tests.toolchain.prepared.small_clone import SmallClone

SCHEMA = Path("serialization", "qc_compiler_spec.fbs")
TEXT = b"a = '$Format:%H$ $Id$'\nb = 1\r\n\xff"


@pytest.fixture
def clone(tmp_path: Path) -> SmallClone:
    clone = SmallClone(tmp_path / "clone")
    (clone.folder / BACKEND / SCHEMA.parent).mkdir()
    (clone.folder / BACKEND / SCHEMA).write_bytes((installed_executorch() / BACKEND / SCHEMA).read_bytes())
    (clone.folder / BACKEND / "b c\n.py").write_bytes(TEXT)
    (clone.folder / BACKEND / "link.py").symlink_to("/etc/passwd")
    return clone


def test_no_filter_attribute_or_replacement_of_a_clone_has_an_effect(clone: SmallClone, tmp_path: Path) -> None:
    sha = clone.commit("plain")
    expected = {"a.py": b"plain", "b c\n.py": TEXT}
    assert commit_files(clone.folder, sha) == expected
    mark = tmp_path / "ran"
    (clone.folder / ".git" / "info").mkdir(exist_ok=True)
    (clone.folder / ".git" / "info" / "attributes").write_text("*.py filter=mine eol=crlf text export-subst ident\n")
    for name in ("filter.mine.smudge", "core.fsmonitor", "core.pager", "diff.external", "tar.umask"):
        clone.git("config", name, f"touch '{mark}'; cat" if "umask" not in name else "0")
    other = clone.git("hash-object", "-w", "--no-filters", str(clone.folder / ".git" / "HEAD"))
    clone.git("replace", clone.git("rev-parse", f"{sha}:{BACKEND}/a.py"), other)
    assert commit_files(clone.folder, sha) == expected
    assert not mark.exists()


def test_a_commit_without_the_backend_is_named(clone: SmallClone) -> None:
    clone.git("checkout", "--quiet", "--orphan", "empty")
    clone.git("commit", "--quiet", "--allow-empty", "--message", "empty")
    clone.git("rm", "-r", "--quiet", "--cached", ".") if clone.git("ls-files") else None
    clone.git("commit", "--quiet", "--allow-empty", "--message", "none")
    with pytest.raises(ToolchainUnusable, match="the commit has no folder backends/qualcomm"):
        commit_files(clone.folder, clone.git("rev-parse", "HEAD"))
