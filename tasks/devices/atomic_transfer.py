"""Transfers that are atomic: a file appears under its name only when it is complete, on the device and here."""

import contextlib
import errno
import posixpath
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks.devices.transport import RunRequest, Transport, require_success
from tasks.errors import DeviceError

_HOUSEKEEPING_S = 60.0
_CLEANING_S = 5.0
"""The deadline for cleaning up after a failed transfer. It is short, because the device may hang."""
# mv would move the source into a folder that has the name of the target.
_MOVE = """\
if [ -d "$2" ] || { [ -d "$1" ] && [ -e "$2" ]; }; then echo "something else is there" >&2; exit 1; fi
mv -f -- "$1" "$2"
"""


def push_atomically(transport: Transport, source: Path, target: str, transfer: Callable[[str], None]) -> None:
    """Call `transfer` to copy the source to a temporary name beside `target` on the device, then rename the copy.

    `transfer` creates the parent folder: ADB does so by itself, and each command costs a round trip.
    """
    if not source.exists():
        raise DeviceError(f"cannot push {source}: there is no such file")
    parent = posixpath.dirname(target)
    arriving = posixpath.join(parent, f".incoming-{secrets.token_hex(8)}")
    try:
        transfer(arriving)
        moved = transport.run(RunRequest(["sh", "-c", _MOVE, "sh", arriving, target], deadline_s=_HOUSEKEEPING_S))
        require_success(moved, f"cannot rename the pushed file to {target} on the device")
    except BaseException:
        with contextlib.suppress(DeviceError):
            transport.run(RunRequest(["rm", "-rf", "--", arriving], deadline_s=_CLEANING_S))
        raise


def pull_atomically(source: str, target: Path, transfer: Callable[[Path], None]) -> None:
    """Call `transfer` to copy the source to a temporary name beside `target` here, then rename the copy."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as incoming:
            fresh = Path(incoming, "complete")
            transfer(fresh)
            rename_into_place(fresh, target)
    except OSError as error:
        raise DeviceError(f"cannot pull {source} to {target}: {error}") from error


def rename_into_place(fresh: Path, target: Path) -> None:
    """Rename a complete file or folder to `target`: a file replaces a file, a folder nothing. Raises OSError."""
    if fresh.is_dir() and target.exists():
        raise FileExistsError(errno.EEXIST, "something else is there", str(target))
    fresh.replace(target)
