"""Atomic transfers: a file appears under its name only when it is complete, on the device and on this machine."""

import errno
import posixpath
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.devices.transport import RunRequest, Transport, require_success
from tasks.errors import DeviceError

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
def pull_atomically(source: str, target: Path) -> Generator[Path]:
    """Yield a temporary path beside `target` on this machine, for a copy that is renamed to `target` at the end."""
    try:
        with renamed_into_place(target) as arriving:
            yield arriving
    except OSError as error:
        raise DeviceError(f"cannot pull {source} to {target}: {error}") from error


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
