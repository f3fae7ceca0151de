"""Files that appear under their name only when they are complete, on the device and here."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.devices.transport import Transport
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError

_HOUSEKEEPING_S = 60.0
_CLEANING_S = 5.0
"""After a transfer that failed: a device that hangs must not be waited for once more."""
# A folder in the way must not swallow what arrives, as mv would have it.
_MOVE = '[ ! -d "$2" ] && { [ ! -d "$1" ] || [ ! -e "$2" ]; } && mv -f -- "$1" "$2"'


def push_atomically(transport: Transport, source: Path, target: str, transfer: Callable[[str], None]) -> None:
    """Have `transfer` bring the source to a temporary name beside `target` on the device, then rename it there.

    `transfer` makes the folder that it is to lie in: ADB does so by itself, and each command costs a round trip.
    """
    if not source.exists():
        raise DeviceError(f"cannot push {source}: there is no such file")
    parent = posixpath.dirname(target)
    arriving = posixpath.join(parent, f".incoming-{secrets.token_hex(8)}")
    try:
        transfer(arriving)
        _must(transport, ["sh", "-c", _MOVE, "sh", arriving, target], f"move what arrived to {target}")
    except BaseException:
        with contextlib.suppress(DeviceError):
            transport.run(["rm", "-rf", "--", arriving], deadline_s=_CLEANING_S)
        raise


def pull_atomically(source: str, target: Path, transfer: Callable[[Path], None]) -> None:
    """Have `transfer` bring the source to a temporary name beside `target` here, then rename it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as incoming:
            fresh = Path(incoming, "whole")
            transfer(fresh)
            rename_into_place(fresh, target)
    except OSError as error:
        raise DeviceError(f"cannot pull {source} to {target}: {error}") from error


def rename_into_place(fresh: Path, target: Path) -> None:
    """Give what is complete its name: a file replaces a file, a folder nothing. Raises OSError."""
    if fresh.is_dir() and target.exists():
        raise FileExistsError(errno.EEXIST, "something else is there", str(target))
    fresh.replace(target)


def _must(transport: Transport, argv: Sequence[str], purpose: str) -> None:
    result = transport.run(argv, deadline_s=_HOUSEKEEPING_S)
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip() or "something else is there"
        raise DeviceError(f"cannot {purpose} on the device: {said}", problem=of_channel(said))
