"""What a device says of itself, in one command that asks nothing of it but a shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.devices.transport import Transport

DEADLINE_S = 30.0

# $1 is the work folder: what df knows is asked of the nearest folder above it that exists.
_ASK = r"""
one() { [ -r "$2" ] && printf '%s=%s\n' "$1" "$(head -n 1 "$2")"; }
if command -v getprop >/dev/null; then
  printf 'soc=%s\n' "$(getprop ro.soc.model)"
  printf 'build=%s\n' "$(getprop ro.build.fingerprint)"
fi
one soc0_machine /sys/devices/soc0/machine
one soc0_id /sys/devices/soc0/soc_id
printf 'arch=%s\n' "$(uname -m)"
[ -r /etc/os-release ] && (. /etc/os-release; printf 'release=%s\n' "$PRETTY_NAME")
for zone in /sys/class/thermal/thermal_zone*/temp; do one "temperature" "$zone"; done
for each in capacity temp current_now voltage_now; do one "battery_$each" "/sys/class/power_supply/battery/$each"; done
folder=$1
while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
df -Pk "$folder" | { read -r _; read -r _ _ _ free _; printf 'free=%s\n' "$free"; }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """None is "the device does not say"."""

    soc: str | None
    arch: str | None
    build: str | None
    free_mib: int | None
    celsius: float | None
    """Of the hottest sensor."""
    battery_percent: int | None
    power_mw: float | None
    """What it draws from its battery."""


def ask(transport: Transport, work_folder: str) -> Facts:
    """Raises DeviceError."""
    said = transport.run(["sh", "-c", _ASK, "sh", work_folder], deadline_s=DEADLINE_S).stdout.decode(errors="replace")
    pairs = [line.partition("=")[::2] for line in said.splitlines() if "=" in line]
    found = {key: value.strip() for key, value in pairs if value.strip()}
    sensors = [_number(value) for key, value in pairs if key == "temperature"]
    # Thermal zones count in millidegrees. One that is off or broken reads far from any device's temperature.
    plausible = [value / 1000 for value in sensors if value is not None and -40_000 < value < 150_000]
    free = _number(found.get("free"))
    percent = _number(found.get("battery_capacity"))
    return Facts(
        soc=found.get("soc") or found.get("soc0_machine"),
        arch=found.get("arch"),
        build=found.get("build") or found.get("release"),
        free_mib=int(free / 1024) if free is not None else None,
        celsius=max(plausible, default=None),
        battery_percent=int(percent) if percent is not None else None,
        power_mw=_power_mw(found),
    )


def soc_matches(read: str, soc: str) -> bool:
    """Whether what a device calls its SoC (`SM8650`, `SM8650-AC`) is the SoC of that name."""
    return read.upper().partition("-")[0] == soc.upper()


def _power_mw(found: Mapping[str, str]) -> float | None:
    microamperes, microvolts = _number(found.get("battery_current_now")), _number(found.get("battery_voltage_now"))
    if microamperes is None or microvolts is None:
        return None
    return abs(microamperes) * microvolts / 1e9


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
