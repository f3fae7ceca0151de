"""What `qnnsweep devices` shows: every device, asked side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conf.load import load
from conf.schema import PROBE, DeviceConfig, RunnerKind, TransportKind
from tasks.devices import facts
from tasks.devices.device import LEASES, Device, open_device
from tasks.devices.farm import quarantined_in
from tasks.devices.native_runner import native_files
from tasks.devices.transport import RunRequest
from tasks.errors import DeviceError, EnvironmentUnusable, RequestError
from tasks.storage.partial import is_abandoned
from tasks.storage.store import Store

_AT_ONCE = 32
# What runs on the device: versions from metadata, importing nothing heavy.
_VERSIONS = """
import json, os, platform
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({"python": platform.python_version(), "executorch": version("executorch"),
                  "qnn": os.environ.get("QNN_SDK_ROOT") and "QNN_SDK_ROOT" or version("onnxruntime-qnn")}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStatus:
    """One device as it was found. None is "it does not say", or that it could not be asked."""

    device: str
    transport: str
    address: str | None
    tags: tuple[str, ...]
    reachable: bool
    problem: str | None
    """Why it cannot be used, and what to do."""
    soc_asked: str | None
    soc_read: str | None = None
    arch: str | None = None
    os_build: str | None = None
    free_mib: int | None = None
    celsius: float | None = None
    battery_percent: int | None = None
    power_mw: float | None = None
    runner: str | None = None
    qnn: str | None = None
    busy: str | None = None
    """Host and process of whoever holds it."""
    quarantined: str | None = None

    @property
    def usable(self) -> bool:
        return self.reachable and self.problem is None and self.quarantined is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def survey(overrides: Sequence[str], config_dirs: Sequence[Path]) -> list[DeviceStatus]:
    """The devices that the overrides name (`device=`, `farm=`), all of them when none does. Raises RequestError."""
    named = any(line.lstrip("+~").startswith(("device=", "farm=")) for line in overrides)
    plan = load([*overrides, *([] if named else ["device=glob(*)"])], config_dirs=config_dirs)
    configs = {device.name: device for cell in plan.cells for device in cell.request.devices}
    folder = Store.at(plan.artifacts, plan.cache_folder).root / "devices"
    suspects = quarantined_in(folder)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda config: _status(config, folder, suspects.get(config.name)), configs.values()))


def _status(config: DeviceConfig, folder: Path, quarantined: str | None) -> DeviceStatus:
    known: dict[str, Any] = {
        "device": config.name,
        "transport": config.transport.name,
        "address": config.address,
        "tags": tuple(config.tags),
        "soc_asked": config.soc,
        "quarantined": quarantined,
    }
    device = open_device(config, host_environment={}, folder=folder, native={})
    try:
        found = facts.read_facts(device.transport, device.work_folder)
        known |= {
            "soc_read": found.soc,
            "arch": found.arch,
            "os_build": found.build,
            "free_mib": found.free_mib,
            "celsius": found.celsius,
            "battery_percent": found.battery_percent,
            "power_mw": found.power_mw,
            "busy": _holder(device),
        }
        problem = _wrong_soc(config, found.soc)
        versions, lack = _native(config) if config.runner is RunnerKind.native else _python(config, device)
        known |= versions
        return DeviceStatus(**known, reachable=True, problem=problem or lack)
    except DeviceError as error:
        remedy = f"; {error.problem.value}" if error.problem else ""
        return DeviceStatus(**known, reachable=False, problem=f"{error}{remedy}")
    finally:
        device.transport.close()


def _wrong_soc(config: DeviceConfig, read: str | None) -> str | None:
    if config.soc is None or (config.soc == PROBE and read is not None):
        return None
    if config.soc == PROBE:
        return "it does not say which SoC it is: name it in device.soc"
    return (
        None
        if read is None or facts.soc_matches(read, config.soc)
        else f"it is a {read}, not the {config.soc} asked for"
    )


def _holder(device: Device) -> str | None:
    """Whoever has a lease on it now, as the device's own folders tell."""
    folder = f"{device.work_folder}/{LEASES}"
    listed = device.transport.run(RunRequest(["ls", "-1", folder], deadline_s=facts.DEADLINE_S))
    held = [name for name in listed.stdout.decode(errors="replace").splitlines() if not is_abandoned(name)]
    return held[0].rpartition("-")[0] if held else None


def _python(config: DeviceConfig, device: Device) -> tuple[dict[str, str | None], str | None]:
    argv = [device.python, "-P", "-c", _VERSIONS]
    ran = device.transport.run(RunRequest(argv, deadline_s=facts.DEADLINE_S, environment=config.environment))
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        said = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return {}, f"{device.python} does not run there: {said or f'exit code {ran.exit_code}'}"
    versions = {"runner": f"python {found['python']}, executorch {found['executorch']}", "qnn": found["qnn"]}
    if found["executorch"] is None:
        return versions, f"no executorch for {device.python}: pip install executorch there"
    if found["qnn"] is None and config.transport is not TransportKind.local:
        return versions, f"no QNN for {device.python}: pip install onnxruntime-qnn there, or set QNN_SDK_ROOT"
    return versions, None


def _native(config: DeviceConfig) -> tuple[dict[str, str | None], str | None]:
    """What this machine would send: of a probed SoC nothing can be said before it is known."""
    if config.soc in (None, PROBE):
        return {"runner": "native"}, None
    try:
        arch = load([f"soc={config.soc}"]).cells[0].request.soc.arch
        files = native_files(config, arch, os.environ)
    except (RequestError, EnvironmentUnusable) as error:
        return {"runner": "native"}, str(error)
    return {"runner": "native", "qnn": _build_of(files)}, None


def _build_of(files: Mapping[str, Path]) -> str:
    return str(files["libQnnHtp.so"])
