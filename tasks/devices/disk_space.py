"""Disk space on a device. Files that have not been used for a long time are removed, but only in qnnsweep's folder."""

import math
import re
from collections.abc import Iterable

from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.transport import require_success
from qnnsweep.tasks.errors import DeviceError, DeviceProblem

_FOREIGN_FILES, _OTHERS_CAN_WRITE = 3, 4
# A folder that contains any file of another program belongs to somebody else: nothing in it is changed. All folders
# belong to the connecting user, and only this user can write there: another user could replace a program or a blob
# after its digest was checked. The names are read before the test for `.qnnsweep`, because another holder of the device
# may claim the folder at the same time. `ls -ldn` prints the mode and the owner on every device; not every device has
# `stat`.
_CLAIM = f"""\
umask 077
mkdir -p -- "$1" || exit
names=$(ls -A -- "$1") || exit
if [ ! -e "$1/.qnnsweep" ]; then
  for name in $names; do case "$name" in blobs|leases|native) ;; *) exit {_FOREIGN_FILES} ;; esac; done
fi
mkdir -p -- "$1/blobs" "$1/leases" "$1/native" || exit
user=$(id -u)
for folder in "$1" "$1/blobs" "$1/leases" "$1/native"; do
  ls -ldn -- "$folder" | {{
    read -r mode _ owner _
    case "$mode $owner" in
      d????-??-?*" $user") ;;
      *) echo "$folder has the mode $mode and the owner $owner, and the user is $user"; exit {_OTHERS_CAN_WRITE} ;;
    esac
  }} || exit
done
chmod 700 "$1" || exit
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


def claim(device: Device) -> None:
    """Create the work folder if it is missing. Raises DeviceError if the folder is not qnnsweep's alone."""
    claimed = device.run(["sh", "-c", _CLAIM, "sh", device.work_folder])
    if claimed.exit_code == _FOREIGN_FILES:
        raise DeviceError(
            f"{device.name}: device.work_folder={device.work_folder} holds files that are not qnnsweep's; "
            "choose a folder that does not exist yet"
        )
    if claimed.exit_code == _OTHERS_CAN_WRITE:
        raise DeviceError(
            f"{device.name}: other users can change files in device.work_folder={device.work_folder}: "
            f"{claimed.stdout.decode(errors='replace').strip()[:1000]}; remove the folder on the device, or choose a "
            "folder in which only this user can write"
        )
    require_success(claimed, f"{device.name}: cannot use device.work_folder={device.work_folder}")


def prune(device: Device) -> None:
    """Remove files unused for `device.keep_days` days. Raises DeviceError."""
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
    printed = device.run(["sh", "-c", _FREE_KIB], folder=device.work_folder).stdout
    free_kib = printed.decode(errors="replace").strip()
    if re.fullmatch("[0-9]{1,18}", free_kib) is None:
        raise DeviceError(
            f"{device.name}: df does not report the free space below {device.work_folder}: it prints {free_kib[:200]!r}"
        )
    return int(free_kib) / 1024
