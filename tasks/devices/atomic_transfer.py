"""Atomic transfers: a file appears under its name only when it is complete, on the device and on this machine."""

import errno
import posixpath
import secrets
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from qnnsweep.tasks.devices.transport import RunRequest, Transport, require_success
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.storage.atomic import translate_os_errors

_HOUSEKEEPING_S = 60.0
_CLEANING_S = 5.0
"""The deadline for cleaning up after a failed transfer. It is short, because the device may hang."""
# Without the `if`, mv would move the source into a folder that already has the target's name.
_MOVE = """\
if [ -d "$2" ] || { [ -d "$1" ] && [ -e "$2" ]; }; then echo "something else is there" >&2; exit 1; fi
mv -f -- "$1" "$2"
"""


@contextmanager
def push_atomically(transport: Transport, source: Path, target: str) -> Generator[str]:
    """Yield a temporary path beside `target` on the device, for a copy that is renamed to `target` at the end.

    The parent folder is not created, because the command would cost a round trip, and ADB creates the folder itself.
    For other channels, the caller must create the folder if needed.
    """
    if not source.exists():
        raise DeviceError(f"cannot push {source}: there is no such file")
    arriving = posixpath.join(posixpath.dirname(target), f".incoming-{secrets.token_hex(8)}")
    try:
        yield arriving
        moved = transport.run(RunRequest(["sh", "-c", _MOVE, "sh", arriving, target], deadline_s=_HOUSEKEEPING_S))
        require_success(moved, f"cannot rename the pushed file to {target} on the device")
    except BaseException:
        with suppress(DeviceError):
            transport.run(RunRequest(["rm", "-rf", "--", arriving], deadline_s=_CLEANING_S))
        raise


@contextmanager
def pull_atomically(sizes: Mapping[str, int], target: Path) -> Generator[Path]:
    """Yield a temporary folder beside `target` on this machine, which is renamed to `target` at the end.

    The folder has the parent folders of all files. Raises DeviceError if a file was not copied completely, and
    EnvironmentUnusable if this machine cannot store the files.
    """
    with translate_os_errors(target), renamed_into_place(target) as arriving:
        for name in sizes:
            (arriving / name).parent.mkdir(parents=True, exist_ok=True)
        yield arriving
        for name, size in sizes.items():
            arrived = arriving / name
            if not arrived.is_file() or arrived.is_symlink() or arrived.stat().st_size != size:
                raise DeviceError(f"cannot pull {name} to {target}: not {size} bytes arrived, as the device announced")


@contextmanager
def renamed_into_place(target: Path) -> Generator[Path]:
    """Yield a temporary path beside `target`, for a copy that is renamed to `target` at the end. Raises OSError.

    A file may replace an existing file. If the copy is a folder and `target` exists, FileExistsError is raised.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as folder:
        arriving = Path(folder, "complete")
        yield arriving
        if arriving.is_dir() and target.exists():
            raise FileExistsError(errno.EEXIST, "something else is there", str(target))
        arriving.replace(target)


def total_size(folder: Path) -> int:
    """Return the total size, in bytes, of all files below a folder, to which another program may be writing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total
