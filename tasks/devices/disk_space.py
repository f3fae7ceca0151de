"""Room on a device: what nobody used for long goes, and nothing outside a folder that qnnsweep made."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tasks.devices.device import Device
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError, DeviceProblem

# A folder that holds anything but qnnsweep's own is somebody's, and stays as it is.
_OWN = """\
mkdir -p -- "$1" || exit
[ -e "$1/.qnnsweep" ] && exit
for each in $(ls -A -- "$1"); do case "$each" in blobs|leases|native) ;; *) exit 3 ;; esac; done
: >"$1/.qnnsweep"
"""
# deploy touches what it uses: by its time a blob tells when it was last of use. A lease lasts hours at most.
_OLD = """\
cd -- "$1" && [ -e .qnnsweep ] || exit
for each in blobs leases native; do
  [ ! -d "$each" ] || find "$each" -mindepth 1 -maxdepth 1 -mmin "+$2" -exec rm -rf -- {} +
done
"""
# The names that stay come as arguments.
_ALL_BUT = """\
cd -- "$1/blobs" && [ -e ../.qnnsweep ] || exit
shift
for each in *; do
  case " $* " in *" $each "*) ;; *) rm -f -- "$each" ;; esac
done
"""
_FREE = "df -Pk . | { read -r _; read -r _ _ _ free _; echo $free; }"


def prune(device: Device) -> None:
    """Make the work folder if there is none, and remove what was not used for `keep_days`. Raises DeviceError."""
    made = device.run(["sh", "-c", _OWN, "sh", device.work_folder])
    if made.exit_code == 3:
        raise DeviceError(
            f"{device.name}: device.work_folder={device.work_folder} holds files that are not qnnsweep's; "
            "name a folder that is not there yet"
        )
    if made.exit_code != 0:
        said = made.stderr.decode(errors="replace").strip()
        raise DeviceError(
            f"{device.name}: cannot use device.work_folder={device.work_folder}: {said}", problem=of_channel(said)
        )
    minutes = math.ceil(device.keep_days * 24 * 60)
    device.run(["sh", "-c", _OLD, "sh", device.work_folder, str(minutes)])


def make_room(device: Device, needed: Iterable[str], arriving_bytes: int) -> None:
    """Remove all blobs but `needed` where less than `least_free_mib` would be left. Raises DeviceError."""
    wanted = arriving_bytes / 2**20 + device.least_free_mib
    if _free_mib(device) >= wanted:
        return
    device.run(["sh", "-c", _ALL_BUT, "sh", device.work_folder, *needed])
    if (free := _free_mib(device)) < arriving_bytes / 2**20:
        raise DeviceError(
            f"{device.name}: No space left on device for {arriving_bytes / 2**20:.0f} MiB: {free:.0f} MiB free below "
            f"{device.work_folder}, and nothing of qnnsweep's left to remove",
            problem=DeviceProblem.FULL,
        )


def _free_mib(device: Device) -> float:
    said = device.run(["sh", "-c", _FREE], folder=device.work_folder).stdout.decode().strip()
    if not said.isdigit():
        raise DeviceError(f"{device.name}: df does not say how much is free below {device.work_folder}: {said!r}")
    return int(said) / 1024
