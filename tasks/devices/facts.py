"""Facts that a device reports about itself, read by one command that needs only a shell."""

import hashlib
import math
from dataclasses import dataclass

from qnnsweep.tasks.devices.transport import RunRequest, Transport

DEADLINE_S = 30.0
_LONGEST = 200
"""The maximum number of characters of a fact."""
# $1 is the work folder. It may not exist yet, so df reads the nearest existing folder above it.
_SCRIPT = r"""
show() { [ -r "$2" ] && printf '%s=%s\n' "$1" "$(head -n 1 "$2")"; }
if command -v getprop >/dev/null; then
  printf 'soc=%s\n' "$(getprop ro.soc.model)"
  printf 'build=%s\n' "$(getprop ro.build.fingerprint)"
  printf 'serial=%s\n' "$(getprop ro.serialno)"
fi
show soc0_serial /sys/devices/soc0/serial_number
[ ! -r /proc/device-tree/serial-number ] || printf 'tree_serial=%s\n' "$(tr -d '\000' </proc/device-tree/serial-number)"
show soc0_machine /sys/devices/soc0/machine
show soc0_id /sys/devices/soc0/soc_id
printf 'arch=%s\n' "$(uname -m)"
[ -r /etc/os-release ] && (. /etc/os-release; printf 'release=%s\n' "$PRETTY_NAME")
for zone in /sys/class/thermal/thermal_zone*/temp; do show "temperature" "$zone"; done
for name in capacity temp current_now voltage_now; do show "battery_$name" "/sys/class/power_supply/battery/$name"; done
folder=$1
while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
df -Pk "$folder" | { read -r _; read -r _ _ _ free _; printf 'free=%s\n' "$free"; }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts of one device. A fact is None if the device does not report it."""

    soc: str | None
    device_id: str | None
    """The digest of the serial number: the number itself would tell more about its owner than tables should."""
    arch: str | None
    build: str | None
    free_mib: int | None
    celsius: float | None
    """The temperature of the hottest sensor."""
    battery_percent: int | None
    power_mw: float | None
    """The power that the device draws from its battery."""


UNKNOWN = Facts(
    soc=None, device_id=None, arch=None, build=None, free_mib=None, celsius=None, battery_percent=None, power_mw=None
)
"""What is known of a device that this machine only asks for jobs."""


def read_facts(transport: Transport, work_folder: str) -> Facts:
    """Read the facts of a device. Raises DeviceError."""
    result = transport.run(RunRequest(["sh", "-c", _SCRIPT, "sh", work_folder], deadline_s=DEADLINE_S))
    lines = result.stdout.decode(errors="replace").splitlines()
    pairs = [line.partition("=")[::2] for line in lines if "=" in line]
    values = {key: value.strip()[:_LONGEST] for key, value in pairs if value.strip()}
    sensors = [_number(value) for key, value in pairs if key == "temperature"]
    # Thermal zones are in millidegrees. A zone that is off or broken reports an implausible temperature.
    plausible = [value / 1000 for value in sensors if value is not None and -40_000 < value < 150_000]
    free = _number(values.get("free"))
    percent = _number(values.get("battery_capacity"))
    microamperes, microvolts = _number(values.get("battery_current_now")), _number(values.get("battery_voltage_now"))
    serial = values.get("serial") or values.get("soc0_serial") or values.get("tree_serial")
    return Facts(
        device_id=hashlib.sha256(serial.encode()).hexdigest()[:16] if serial else None,
        soc=values.get("soc") or values.get("soc0_machine"),
        arch=values.get("arch"),
        build=values.get("build") or values.get("release"),
        free_mib=int(free / 1024) if free is not None else None,
        celsius=max(plausible, default=None),
        battery_percent=int(percent) if percent is not None else None,
        power_mw=None if microamperes is None or microvolts is None else abs(microamperes) * microvolts / 1e9,
    )


def soc_matches(reported: str, soc: str) -> bool:
    """Return whether the SoC that a device reports (`SM8650`, `SM8650-AC`) is the SoC with the name `soc`."""
    return reported.upper().partition("-")[0] == soc.upper()


def _number(text: str | None) -> float | None:
    """Return a finite number; None for any other text."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
