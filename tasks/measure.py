"""The stage measure: Bundle -> Capture. Its three steps run on a device during one lease."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qnnsweep.conf.schema import DeviceConfig, RunnerKind, SocConfig
from qnnsweep.tasks.devices.collect import collect_task
from qnnsweep.tasks.devices.deploy import deploy_task
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.native_runner import native_files
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.devices.execute import execute_task
from qnnsweep.tasks.records import Bundle, Capture, Toolchain
from qnnsweep.tasks.records.methods import for_each_method
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store

Step = Callable[[Any], Any]


def measure(
    bundle: Bundle,
    devices: tuple[DeviceConfig, ...],
    soc: SocConfig | None,
    _toolchain: Toolchain | None = None,
    run_id: str | None = None,
    *,
    store: Store,
    farm: Farm,
    step: Step,
) -> Capture:
    """Deploy, execute and collect on a free device of the SoC; repeat on another device when a device fails.

    `soc`: None for a program that does not depend on an SoC.
    `_toolchain`: the toolchain with which a local device runs its programs; used only for the cache key.
    `run_id`: written into the capture.
    `step`: returns a stage's task with the name and the progress callbacks that it has in the sweep.
    Raises DeviceError when no device is left. RunnerFailed and EvidenceError of the three steps are passed on.
    """
    while True:
        with farm.lease(devices, soc) as device:
            try:
                deployment = step(deploy_task)(bundle, device=device, store=store)
                execution = step(execute_task)(deployment, device=device, store=store)
                capture = step(collect_task)(execution, device=device, store=store)
                return for_each_method(capture, lambda method: replace(method, measured_run=run_id))
            except DeviceError as error:
                farm.quarantine(device.name, error)


def _key_inputs(
    bundle: Bundle, devices: tuple[DeviceConfig, ...], soc: SocConfig | None, toolchain: Toolchain | None, _: str | None
) -> object:
    """Return what the result depends on. A device contributes its address and its runner, but not its deadlines."""
    by_name = sorted(devices, key=lambda device: device.name)
    return bundle, [_device(device, soc) for device in by_name], soc, toolchain


def _device(device: DeviceConfig, soc: SocConfig | None) -> object:
    runner_files: list[object] = []
    if device.runner is RunnerKind.native and soc is not None:
        files = native_files(device, soc.arch, os.environ)
        # Hashing hundreds of megabytes per cell would be slow: names, sizes and times represent the content.
        runner_files = [[name, path.stat().st_size, path.stat().st_mtime_ns] for name, path in sorted(files.items())]
    address = (device.name, device.transport, device.address, device.adb_server, device.ssh.jump, device.soc)
    return address, device.runner, device.python, device.environment, device.below_celsius, runner_files


measure_task = stage(measure, version=1, key_inputs=_key_inputs)
