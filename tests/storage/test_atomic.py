"""Tests that the temporary files of killed processes are removed, and no other files."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.errors import EnvironmentUnusable
from tasks.records import Blob
from tasks.storage.atomic import temporary_name, translate_os_errors
from tasks.storage.store import Store

REPOSITORY = Path(__file__).parents[2]

# Prints a line after 20 blobs, and then writes until it is killed.
ENDLESS = """
import os, sys
from itertools import count
from pathlib import Path
from tasks.storage.store import Store
store = Store(Path(sys.argv[1]))
with store.scratch("lower") as folder:
    (folder / "half.pte").write_bytes(b"x")
    for i in count():
        store.put_bytes(os.urandom(300_000 + i))
        if i == 20: print("writing", flush=True)
"""


def test_a_killed_writer_leaves_only_complete_blobs_and_its_temporaries_are_removed(store: Store) -> None:
    leftovers = 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(store.root)], cwd=REPOSITORY, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            assert store.remove_stale_temporaries() == 0
            assert any(store.partial.glob("*/lower/half.pte"))
            os.kill(writer.pid, signal.SIGKILL)
        assert writer.returncode == -signal.SIGKILL
        leftovers += store.remove_stale_temporaries()
        assert list(store.partial.iterdir()) == []

    assert leftovers >= 3
    blobs = [path for path in store.blobs.rglob("*") if path.is_file()]
    assert len(blobs) >= 60
    for path in blobs:
        store.verify(Blob(sha256=path.name, size=path.stat().st_size))


def test_remove_stale_spares_living_processes_other_hosts_and_unknown_names(store: Store) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    host, tail = socket.gethostname(), "0123456789abcdef"
    spared = {
        temporary_name(),
        f"{host}-1-{tail}",
        f"{host}-extra-{dead.pid}-{tail}",
        f"elsewhere-{dead.pid}-{tail}",
        f"{host}-{dead.pid}",
        f"{host}-{dead.pid}-short",
        "notes.txt",
    }
    for name in (*spared, f"{host}-{dead.pid}-{tail}"):
        (store.partial / name).touch()
    assert store.remove_stale_temporaries() == 1
    assert {path.name for path in store.partial.iterdir()} == spared


def test_remove_stale_does_not_follow_links_out_of_the_store(store: Store, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    leftover = store.partial / f"{socket.gethostname()}-{dead.pid}-0123456789abcdef"
    leftover.symlink_to(precious)
    assert store.remove_stale_temporaries() == 1
    assert not leftover.is_symlink()
    assert (precious / "file").exists()


def test_nothing_is_stale_before_the_first_write(tmp_path: Path) -> None:
    assert Store(tmp_path / "never used").remove_stale_temporaries() == 0


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (
            errno.ENOSPC,
            "No space left on device; free some space there, or set artifacts=FOLDER to a folder on another disk",
        ),
        (
            errno.EDQUOT,
            "Disk quota exceeded; free some space there, or set artifacts=FOLDER to a folder on another disk",
        ),
        (errno.EACCES, "Permission denied; make it writable, or set artifacts=FOLDER to a writable folder"),
        (errno.EPERM, "Operation not permitted; make it writable, or set artifacts=FOLDER to a writable folder"),
        (errno.EROFS, "Read-only file system; make it writable, or set artifacts=FOLDER to a writable folder"),
        (
            errno.ENOTDIR,
            "Not a directory; there is a file of that name: move it, or set artifacts=FOLDER to another folder",
        ),
        (errno.EXDEV, "Invalid cross-device link; keep the whole artifacts folder on one file system"),
    ],
)
def test_an_os_error_of_the_folder_is_translated_with_a_remedy(code: int, advice: str) -> None:
    with pytest.raises(EnvironmentUnusable) as unusable, translate_os_errors(Path("/somewhere/artifacts")):
        raise OSError(code, os.strerror(code))
    assert str(unusable.value) == f"artifacts: cannot use /somewhere/artifacts: {advice}"


def test_any_other_os_error_is_not_translated() -> None:
    with pytest.raises(InterruptedError), translate_os_errors(Path("/somewhere/artifacts")):
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))
