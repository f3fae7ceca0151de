"""The status of every device, for `qnnsweep devices`. Devices are queried in parallel."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from qnnsweep.conf.devices import HOSTED, PROBE, DeviceConfig, RunnerKind, TransportKind
from qnnsweep.conf.errors import printable
from qnnsweep.conf.load import load
from qnnsweep.tasks.devices import facts
from qnnsweep.tasks.devices.device import Device, open_device
from qnnsweep.tasks.devices.farm import quarantined_in
from qnnsweep.tasks.devices.lock import holder_of
from qnnsweep.tasks.devices.native_runner import native_files
from qnnsweep.tasks.devices.onnxruntime_wheel import missing_libraries
from qnnsweep.tasks.devices.transport import RunRequest
from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable, RequestError
from qnnsweep.tasks.report.format import plain_table
from qnnsweep.tasks.storage.store import Store

_PARALLEL = 32
# This code runs on the device. It reads versions from metadata, without importing any large package.
_VERSIONS = """
import json, os, platform
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
def files(name):
    try:
        return [path.name for path in metadata.files(name) or ()]
    except metadata.PackageNotFoundError:
        return []
print(json.dumps({"system": platform.system(), "machine": platform.machine(), "files": files("onnxruntime-qnn"),
                  "python": platform.python_version(), "executorch": version("executorch"),
                  "numpy": version("numpy"), "onnxruntime": version("onnxruntime"),
                  "wheel": version("onnxruntime-qnn"),
                  "qnn": os.environ.get("QNN_SDK_ROOT") and "QNN_SDK_ROOT" or version("onnxruntime-qnn")}))
"""


# The client of Qualcomm AI Hub names the devices of a name (the first argument) and a version of the OS (the second).
_HOSTED = """
import json, platform, sys
from importlib import metadata
answer = {"python": platform.python_version(), "version": None, "found": None, "problem": None}
token, quotes_all = None, True
try:
    metadata.version("flatbuffers")
    answer["version"] = metadata.version("qai-hub")
    import qai_hub
    quotes_all = False
    client = qai_hub.Client()
    client.set_verbose(False)
    token = [word for word in client.config.api_token.split() if len(word) > 3]
    found = client.get_devices(name=sys.argv[1], os=sys.argv[2])
    answer["found"] = [[device.name, device.os] for device in found]
except metadata.PackageNotFoundError:
    pass
except Exception as error:
    # The texts of the client's libraries can quote its configuration with the token, or a proxy's URL with a password.
    is_safe = quotes_all or type(error).__module__.partition(".")[0] in ("qai_hub", "builtins")
    text = str(error) if is_safe else "its text is left out"
    for word in token or ():
        text = text.replace(word, "...")
    answer["problem"] = f"{type(error).__name__}: {text}"
print(json.dumps(answer))
"""
_SERVICE_S = 90.0
_BOXES = re.compile("[\u2500-\u257f|]")
"""What the client draws around its texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStatus:
    """The status of one device. A value is None if the device does not report it or cannot be reached."""

    device: str
    transport: str
    address: str | None
    tags: tuple[str, ...]
    reachable: bool
    problem: str | None
    """The reason why the device cannot be used, and what to do about it."""
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
    """The host and the process that hold a lease on the device."""
    quarantined: str | None = None

    @property
    def usable(self) -> bool:
        return self.reachable and self.problem is None and self.quarantined is None


def survey(overrides: Sequence[str], config_dirs: Sequence[Path]) -> list[DeviceStatus]:
    """Return the status of every device, or only of those selected by `device=` or `farm=`. Raises RequestError."""
    named = any(line.lstrip("+~").startswith(("device=", "farm=")) for line in overrides)
    every = [] if named else [f"device=glob(*,exclude={HOSTED})"]  # it needs an account
    plan = load([*overrides, *every], config_dirs=config_dirs)
    configs = {device.name: device for cell in plan.cells for device in cell.request.devices}
    folder = Store.at(plan.artifacts, plan.cache_folder, plan.object_store).root / "devices"
    quarantined = quarantined_in(folder)
    with ThreadPoolExecutor(_PARALLEL) as threads:
        return list(threads.map(lambda config: _status(config, folder, quarantined.get(config.name)), configs.values()))


def _status(config: DeviceConfig, folder: Path, quarantined: str | None) -> DeviceStatus:
    status: dict[str, Any] = {
        "device": config.name,
        "transport": config.transport.name,
        "address": config.address,
        "tags": tuple(config.tags),
        "soc_asked": config.soc,
        "quarantined": quarantined,
    }
    if config.lease.acquire:  # it costs money to ask
        return DeviceStatus(**status, reachable=True, problem=None, runner="hired when a cell needs it")
    device = open_device(config, host_environment={}, folder=folder, native={})
    if config.runner is RunnerKind.aihub:
        return _hosted(config, device, status)
    try:
        read = facts.read_facts(device.transport, device.work_folder)
        status |= {
            "soc_read": read.soc,
            "arch": read.arch,
            "os_build": read.build,
            "free_mib": read.free_mib,
            "celsius": read.celsius,
            "battery_percent": read.battery_percent,
            "power_mw": read.power_mw,
            "busy": holder_of(device),
        }
        problem = _wrong_soc(config, read.soc)
        runners = {RunnerKind.native: _native, RunnerKind.onnxruntime: _onnxruntime}
        versions, missing = runners.get(config.runner, _python)(config, device)
        status |= versions
        return DeviceStatus(**status, reachable=True, problem=problem or missing)
    except DeviceError as error:
        remedy = f"; {error.problem.value}" if error.problem else ""
        return DeviceStatus(**status, reachable=False, problem=f"{error}{remedy}")
    finally:
        device.transport.close()


def _wrong_soc(config: DeviceConfig, read: str | None) -> str | None:
    if config.soc is None or (config.soc == PROBE and read is not None):
        return None
    if config.soc == PROBE:
        return "the device does not report its SoC: set device.soc"
    is_right = read is None or facts.soc_matches(read, config.soc)
    return None if is_right else f"its SoC is {read}, not {config.soc}: correct device.soc"


_ANSWERS = ("system", "machine", "files", "python", "executorch", "numpy", "onnxruntime", "wheel", "qnn")
Versions = tuple[dict[str, str | None], str | None]
"""The values of the fields `runner` and `qnn`, and the problem with the runner, or None."""


def _said(
    device: Device, program: str, names: Sequence[str], *arguments: str, deadline_s: float = facts.DEADLINE_S
) -> dict[str, Any] | str:
    """Return what a program for the device's Python prints, or why it cannot be read. Raises DeviceError."""
    argv = [device.python, "-P", "-c", program, *arguments]
    ran = device.transport.run(RunRequest(argv, deadline_s=deadline_s, environment=device.environment))
    try:
        read: Mapping[str, Any] = json.loads(ran.stdout)
        return {name: read[name] for name in names}
    except (ValueError, TypeError, KeyError, RecursionError):
        return ran.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {ran.exit_code}"


def _packages(device: Device) -> Mapping[str, Any] | str:
    """Return what the device's Python says of its machine and packages, or why it cannot be read."""
    read = _said(device, _VERSIONS, _ANSWERS)
    return read if isinstance(read, dict) else f"{device.python} does not run there: {read}; set device.python"


def _onnxruntime(config: DeviceConfig, device: Device) -> Versions:
    read = _packages(device)
    if isinstance(read, str):
        return {}, read
    versions = {"runner": f"python {read['python']}, onnxruntime {read['onnxruntime']}", "qnn": read["wheel"]}
    named = {"numpy": "numpy", "onnxruntime": "onnxruntime", "wheel": f"onnxruntime-qnn=={version('onnxruntime-qnn')}"}
    if missing := [package for name, package in named.items() if read[name] is None]:
        line = f"{device.python} -m pip install {' '.join(missing)}"
        return versions, f"{device.python} lacks packages: run `{line}` there"
    arch = None if config.soc in (None, PROBE) else _arch_of(config.soc)
    if lacks := missing_libraries(read["system"], read["machine"], read["files"], arch):
        wheel = f"onnxruntime-qnn {read['wheel']} for {read['system']} on {read['machine']}"
        return versions, f"{wheel} has no {', '.join(lacks)}: it cannot run programs of {config.soc or 'any SoC'}"
    return versions, None


def _hosted(config: DeviceConfig, device: Device, status: Mapping[str, Any]) -> DeviceStatus:
    """Ask Qualcomm AI Hub whether it has the device. The device itself is not asked: that would be a job."""
    name, version_of_os = config.aihub.device or "", config.aihub.os
    names = ("python", "version", "found", "problem")
    try:
        said = _said(device, _HOSTED, names, name, version_of_os, deadline_s=_SERVICE_S)
    except DeviceError as error:
        said = str(error)
    if isinstance(said, str):
        problem = f"{device.python} does not ask AI Hub: {said}; see docs/devices.md for how to make it"
        return DeviceStatus(**status, reachable=False, problem=problem)
    python, package, found, problem = said.values()
    runner = f"python {python}, qai-hub {package}"
    if package is None:
        problem = f"{device.python} lacks packages: run `{device.python} -m pip install qai-hub flatbuffers`"
    elif problem is not None:
        problem = f"AI Hub: {' '.join(_BOXES.sub(' ', str(problem)).split())}"
    elif not found:
        problem = f"AI Hub has no device {name} {version_of_os}".rstrip() + ": correct device.aihub.device"
    build = ", ".join(sorted({str(version) for _, version in found or ()})) or None
    return DeviceStatus(**status, reachable=found is not None, problem=problem, os_build=build, runner=runner)


def _python(config: DeviceConfig, device: Device) -> Versions:
    read = _packages(device)
    if isinstance(read, str):
        return {}, read
    versions = {"runner": f"python {read['python']}, executorch {read['executorch']}", "qnn": read["qnn"]}
    if read["executorch"] is None:
        return versions, f"{device.python} has no executorch: run `pip install executorch` there"
    if read["qnn"] is None and config.transport is not TransportKind.local:
        return versions, f"{device.python} has no QNN: run `pip install onnxruntime-qnn` there, or set QNN_SDK_ROOT"
    return versions, None


def _arch_of(soc: str) -> int:
    """Return the number of the Hexagon architecture of an SoC. Raises RequestError."""
    return load([f"soc={soc}"]).cells[0].request.soc.arch


def _native(config: DeviceConfig, _: Device) -> Versions:
    """Check the native runner's files on this machine, unless the configuration does not name an SoC."""
    if config.soc in (None, PROBE):
        return {"runner": "native"}, None
    try:
        files = native_files(config, _arch_of(config.soc), os.environ)
    except (RequestError, EnvironmentUnusable) as error:
        return {"runner": "native"}, str(error)
    return {"runner": "native", "qnn": str(files["libQnnHtp.so"])}, None


def devices_table(statuses: Sequence[DeviceStatus]) -> Table:
    table = plain_table(
        "", "device", "by", "SoC asked", "SoC read", "arch", "build", "free", "°C", "battery", "runner", "QNN", "state",
        "what to do",
    )  # fmt: skip
    for status in statuses:
        free = f"busy: {status.busy}" if status.busy else "free"
        state = f"quarantined: {status.quarantined}" if status.quarantined else free
        cells = (
            status.device,
            status.transport,
            status.soc_asked or "any",
            status.soc_read,
            status.arch,
            status.os_build,
            None if status.free_mib is None else f"{status.free_mib / 1024:.1f} GiB",
            None if status.celsius is None else f"{status.celsius:.0f}",
            None if status.battery_percent is None else f"{status.battery_percent} %",
            status.runner,
            status.qnn,
            state if status.reachable else "unreachable",
            status.problem or "",
        )
        mark = Text("✓", "green") if status.usable else Text("✗", "bold red")
        table.add_row(mark, *(Text("–" if cell is None else printable(cell)) for cell in cells))
    return table
