"""Tests that the temporary files of killed processes are removed, and no other files."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.atomic import owner_of, temporary_name, translate_os_errors
from qnnsweep.tasks.storage.store import Store

REPOSITORY = Path(__file__).parents[2]

# Prints a line after 20 blobs, and then writes until it is killed.
ENDLESS = """
import os, sys
from itertools import count
from pathlib import Path
from qnnsweep.tasks.storage.store import Store
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


def name_of(pid: int, host: str = "", namespace: str = "") -> str:
    """Return the temporary name of a process, by default one in the namespace of this process."""
    owner = owner_of(temporary_name())
    assert owner is not None
    return f"{host or owner.host}-{namespace or owner.namespace}-{pid}-0123456789abcdef"


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        return dead.pid


def test_remove_stale_spares_living_processes_other_hosts_and_unknown_names(store: Store) -> None:
    dead = dead_process()
    spared = {
        temporary_name(),
        name_of(1),
        name_of(dead, host=f"{socket.gethostname()}-extra"),
        name_of(dead, host="elsewhere"),
        name_of(dead, namespace="0" * 16),
        name_of(dead).rpartition("-")[0],
        f"{name_of(dead)}-short",
        f"{socket.gethostname()}-{dead}-0123456789abcdef",
        "notes.txt",
    }
    for name in (*spared, name_of(dead)):
        (store.partial / name).touch()
    assert store.remove_stale_temporaries() == 1
    assert {path.name for path in store.partial.iterdir()} == spared


def test_the_files_of_another_boot_or_container_are_removed_a_week_after_their_last_change(store: Store) -> None:
    before = time.time() - 8 * 86_400
    forgotten, changed, elsewhere = (
        store.partial / name
        for name in (name_of(7, namespace="0" * 16), name_of(8, namespace="0" * 16), name_of(7, host="elsewhere"))
    )
    for folder in (forgotten, changed, elsewhere):
        (folder / "lower").mkdir(parents=True)
        (folder / "lower" / "half.pte").touch()
        for path in ((folder / "lower" / "half.pte"), folder / "lower", folder):
            os.utime(path, (before, before))
    (changed / "lower" / "half.pte").touch()
    assert store.remove_stale_temporaries() == 1
    assert sorted(store.partial.iterdir()) == sorted([changed, elsewhere])


IN_NAMESPACE = ("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc")

# Forks until a process has one of the given ids. That process holds a scratch folder until its input ends.
HOLDER = """
import os, sys
from pathlib import Path
from qnnsweep.tasks.storage.store import Store
while True:
    if (child := os.fork()) == 0:
        if len(sys.argv) > 2 and os.getpid() not in map(int, sys.argv[2].split(",")): os._exit(0)
        with Store(Path(sys.argv[1])).scratch("lower") as folder:
            (folder / "half.pte").write_bytes(b"x")
            print("holding", flush=True)
            sys.stdin.read()
            os._exit(0 if folder.is_dir() else 1)
    _, status = os.waitpid(child, 0)
    if len(sys.argv) < 3 or child in map(int, sys.argv[2].split(",")): sys.exit(os.waitstatus_to_exitcode(status))
"""
SWEEPER = """
import sys
from pathlib import Path
from qnnsweep.tasks.storage.store import Store
print(Store(Path(sys.argv[1])).remove_stale_temporaries())
"""
# A killed process leaves a scratch folder.
KILLED = """
import os, sys
from pathlib import Path
from qnnsweep.tasks.storage.store import Store
scratch = Store(Path(sys.argv[1])).scratch("lower")
if os.fork() == 0:
    scratch.__enter__()
    os.abort()
os.wait()
"""


@pytest.mark.parametrize("inside", ["holder", "remover"])
def test_a_living_process_of_another_container_with_the_name_of_this_host_loses_nothing(
    store: Store, inside: str
) -> None:
    """The id of the holder is that of no process where the remover is."""
    free = ",".join(str(pid) for pid in range(2, 3000) if not Path("/proc", str(pid)).exists())
    python, place = [sys.executable, "-c"], str(store.root)
    hold = [*IN_NAMESPACE, *python, HOLDER, place, free] if inside == "holder" else [*python, HOLDER, place]
    remove = [*(IN_NAMESPACE if inside == "remover" else ()), *python, SWEEPER, place]
    with subprocess.Popen(hold, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        removed = subprocess.run(remove, cwd=REPOSITORY, check=True, capture_output=True, text=True)
        assert removed.stdout == "0\n"
        holder.stdin.close()
        assert holder.wait(60) == 0


def test_the_files_of_a_dead_process_of_a_container_are_removed_inside_it(store: Store) -> None:
    command = [*IN_NAMESPACE, sys.executable, "-c", KILLED + SWEEPER, str(store.root)]
    assert subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout == "1\n"


def test_remove_stale_does_not_follow_links_out_of_the_store(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    leftover = store.partial / name_of(dead_process())
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
