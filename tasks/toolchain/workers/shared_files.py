"""The files of a call in /dev/shm, which are memory that belongs to no process.

Where the user may mount file systems, every call has a /dev/shm of its own. Its files count towards the memory limit of
the call, and go when the call has ended.
"""

import ctypes
import os
from pathlib import Path

FOLDER = "/dev/shm"  # noqa: S108 - the folder of multiprocessing, of joblib and of torch
_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000


def mount_private_folder() -> bool:
    """Give this process and its later children an empty /dev/shm. Return False where the user may not mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None) == 0
        and libc.mount(b"tmpfs", FOLDER.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=1777") == 0
    )


def private_bytes(pid: int) -> int:
    """Return the size of the files in the /dev/shm of a process. Return 0 if it is the /dev/shm of this process.

    A process that has ended has no such files.
    """
    folder = Path(f"/proc/{pid}/root{FOLDER}")
    try:
        if folder.stat().st_dev == Path(FOLDER).stat().st_dev:
            return 0
        status = os.statvfs(folder)
    except OSError:
        return 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize
