"""measure: Bundle -> Capture, the three steps that happen on a device, under one lease."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conf.schema import DeviceConfig, RunnerKind, SocConfig
from tasks.collect import collect_task
from tasks.deploy import deploy_task
from tasks.devices.farm import Farm
from tasks.devices.native_runner import native_files
from tasks.errors import DeviceError
from tasks.execute import execute_task
from tasks.records import Bundle, Capture, Toolchain
from tasks.stage import stage
from tasks.storage.store import Store

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
    """Deploy, execute, collect, on a free device of the SoC; on another one when a device lets the program down.

    `soc` is None for a program of no SoC's. Raises DeviceError when no device is left, RunnerFailed or EvidenceError.
    `step` gives each of the three its place in the sweep: the name of its run and who hears of it. `_toolchain`, for
    the cache key alone: a local device runs its programs with it. `run_id` is written into the capture.
    """
    while True:
        with farm.lease(devices, soc) as device:
            try:
                deployment = step(deploy_task)(bundle, device=device, store=store)
                execution = step(execute_task)(deployment, device=device, store=store)
                capture = step(collect_task)(execution, device=device, store=store)
                return replace(capture, measured_run=run_id)
            except DeviceError as error:
                farm.quarantine(device.name, error)


def _matter(
    bundle: Bundle, devices: tuple[DeviceConfig, ...], soc: SocConfig | None, toolchain: Toolchain | None, _: str | None
) -> object:
    """A device is its name, the way there, and what runs the program on it; how long to wait for it is not."""
    return bundle, [_device(each, soc) for each in sorted(devices, key=lambda each: each.name)], soc, toolchain


def _device(device: DeviceConfig, soc: SocConfig | None) -> object:
    ours: list[object] = []
    if device.runner is RunnerKind.native and soc is not None:
        files = native_files(device, soc.arch, os.environ)
        # Hundreds of megabytes, asked of every cell: their names, sizes and times stand for them.
        ours = [[name, path.stat().st_size, path.stat().st_mtime_ns] for name, path in sorted(files.items())]
    way = (device.name, device.transport, device.address, device.adb_server, device.ssh.jump, device.soc)
    return way, device.runner, device.python, device.environment, device.below_celsius, ours


measure_task = stage(measure, version=1, matter=_matter)
