"""Disk space on a device. Files that have not been used for a long time are removed, but only in qnnsweep's folder."""

import math
from collections.abc import Iterable

from tasks.devices.device import Device
from tasks.devices.transport import require_success
from tasks.errors import DeviceError, DeviceProblem

_FOREIGN_FILES = 3
# A folder that contains any file of another program belongs to somebody else: nothing in it is changed.
_CLAIM = f"""\
mkdir -p -- "$1" || exit
[ -e "$1/.qnnsweep" ] && exit
for name in $(ls -A -- "$1"); do case "$name" in blobs|leases|native) ;; *) exit {_FOREIGN_FILES} ;; esac; done
: >"$1/.qnnsweep"
"""
# deploy touches every blob that it uses: a blob's time is the time of its last use. A lease lasts hours at most.
_REMOVE_OLD = """\
cd -- "$1" && [ -e .qnnsweep ] || exit
for name in blobs leases native; do
  [ ! -d "$name" ] || find "$name" -mindepth 1 -maxdepth 1 -mmin "+$2" -exec rm -rf -- {} +
done
"""
# The arguments after the folder are the names to keep.
_REMOVE_OTHERS = """\
cd -- "$1/blobs" && [ -e ../.qnnsweep ] || exit
shift
for name in *; do
  case " $* " in *" $name "*) ;; *) rm -f -- "$name" ;; esac
done
"""
_FREE_KIB = "df -Pk . | { read -r _; read -r _ _ _ free _; echo $free; }"


def prune(device: Device) -> None:
    """Create the work folder if it is missing. Remove files unused for `device.keep_days` days. Raises DeviceError."""
    claimed = device.run(["sh", "-c", _CLAIM, "sh", device.work_folder])
    if claimed.exit_code == _FOREIGN_FILES:
        raise DeviceError(
            f"{device.name}: device.work_folder={device.work_folder} holds files that are not qnnsweep's; "
            "choose a folder that does not exist yet"
        )
    require_success(claimed, f"{device.name}: cannot use device.work_folder={device.work_folder}")
    minutes = math.ceil(device.config.keep_days * 24 * 60)
    device.run(["sh", "-c", _REMOVE_OLD, "sh", device.work_folder, str(minutes)])


def make_room(device: Device, needed: Iterable[str], arriving_bytes: int) -> None:
    """Remove all blobs but `needed` if a transfer would leave less than `device.least_free_mib`. Raises DeviceError."""
    arriving_mib = arriving_bytes / 2**20
    if _free_mib(device) >= arriving_mib + device.config.least_free_mib:
        return
    device.run(["sh", "-c", _REMOVE_OTHERS, "sh", device.work_folder, *needed])
    if (free := _free_mib(device)) < arriving_mib:
        raise DeviceError(
            f"{device.name}: No space left on device for {arriving_mib:.0f} MiB: {free:.0f} MiB free below "
            f"{device.work_folder}, and no file of qnnsweep remains that could be removed",
            problem=DeviceProblem.FULL,
        )


def _free_mib(device: Device) -> float:
    free_kib = device.run(["sh", "-c", _FREE_KIB], folder=device.work_folder).stdout.decode().strip()
    if not free_kib.isdigit():
        raise DeviceError(
            f"{device.name}: df does not report the free space below {device.work_folder}: it prints {free_kib!r}"
        )
    return int(free_kib) / 1024
