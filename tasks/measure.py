"""measure: Bundle -> Capture, the three steps that happen on a device, under one lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conf.schema import DeviceConfig, SocConfig
from tasks.collect import collect_task
from tasks.deploy import deploy_task
from tasks.devices.farm import Farm
from tasks.errors import DeviceError
from tasks.execute import execute_task
from tasks.records import Bundle, Capture
from tasks.stage import stage
from tasks.storage.store import Store

Step = Callable[[Any], Any]


def measure(
    bundle: Bundle, devices: tuple[DeviceConfig, ...], soc: SocConfig | None, *, store: Store, farm: Farm, step: Step
) -> Capture:
    """Deploy, execute, collect, on a free device of the SoC; on another one when a device lets the program down.

    `soc` is None for a program of no SoC's. Raises DeviceError when no device is left, RunnerFailed or EvidenceError.
    `step` gives each of the three its place in the sweep: the name of its run and who hears of it.
    """
    while True:
        with farm.lease(devices, soc) as device:
            try:
                deployment = step(deploy_task)(bundle, device=device, store=store)
                execution = step(execute_task)(deployment, device=device, store=store)
                return step(collect_task)(execution, device=device, store=store)
            except DeviceError as error:
                farm.quarantine(device.name, error)


measure_task = stage(measure, version=1, cached=False)
