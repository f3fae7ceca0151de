"""The files that ExecuTorch's native `qnn_executor_runner` needs on a device, and their paths on this machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from qnnsweep.conf.devices import DeviceConfig, RunnerKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.errors import EnvironmentUnusable

RUNNER = "qnn_executor_runner"
BACKEND = "libqnn_executorch_backend.so"
_TARGETS = ("aarch64-android", "aarch64-oe-linux-gcc11.2", "aarch64-oe-linux-gcc9.3", "aarch64-ubuntu-gcc9.4")
"""The SDK's library folders for devices, phones first."""


def native_files(device: DeviceConfig, arch: int, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the runner's files: their names on the device, mapped to their paths on this machine.

    `arch`: the device's Hexagon version. Raises EnvironmentUnusable with a list of all missing files.
    """
    missing: list[str] = []
    sdk = environ.get("QNN_SDK_ROOT")
    build = Path(device.native_folder or "")
    files: dict[str, Path] = {}
    for name in (RUNNER, BACKEND):
        matches = sorted(build.rglob(name)) if build.is_dir() else []
        if matches:
            files[name] = matches[0]
        else:
            missing.append(f"{name} below device.native_folder={build}")
    if not sdk:
        missing.append("QNN_SDK_ROOT, an unpacked Qualcomm AI Engine Direct SDK (PyPI has no libraries for devices)")
    else:
        folders = [Path(sdk, "lib", target) for target in _TARGETS]
        folder = next((folder for folder in folders if (folder / "libQnnHtp.so").is_file()), folders[0])
        libraries = {name: folder / name for name in ("libQnnHtp.so", "libQnnSystem.so", f"libQnnHtpV{arch}Stub.so")}
        skel = f"libQnnHtpV{arch}Skel.so"
        libraries[skel] = Path(sdk, "lib", f"hexagon-v{arch}", "unsigned", skel)
        files |= libraries
        missing += [str(path) for path in libraries.values() if not path.is_file()]
    if missing:
        raise EnvironmentUnusable(f"device {device.name}: its native runner lacks {'; '.join(missing)}")
    return files


def devices_key(devices: Sequence[DeviceConfig], soc: SocConfig | None) -> list[object]:
    """Return what a measurement on one of the devices depends on: addresses and runners, but not deadlines."""
    return [_device_key(device, soc) for device in sorted(devices, key=lambda device: device.name)]


def _device_key(device: DeviceConfig, soc: SocConfig | None) -> object:
    runner_files: list[object] = []
    if device.runner is RunnerKind.native and soc is not None:
        files = native_files(device, soc.arch, os.environ)
        # Hashing hundreds of megabytes per cell would be slow: names, sizes and times represent the content.
        runner_files = [[name, path.stat().st_size, path.stat().st_mtime_ns] for name, path in sorted(files.items())]
    address = (device.name, device.transport, device.address, device.adb_server, device.ssh.jump, device.soc)
    return address, device.runner, device.python, device.environment, device.below_celsius, runner_files, device.aihub
