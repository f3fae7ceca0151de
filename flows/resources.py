"""The resources of one sweep: its store, its worker processes and its devices, within the machine's limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from conf.impossible import can_run_on
from conf.plan import Plan
from conf.schema import DeviceConfig, LimitsConfig, RunnerKind, SocConfig
from conf.units import GIB, MIB
from flows import expected_costs
from tasks.devices.farm import DeviceLock, Farm
from tasks.devices.native_runner import native_files
from tasks.errors import EnvironmentUnusable
from tasks.storage.store import Store
from tasks.toolchain.backends.qnn_sdk import find_sdk, identity
from tasks.toolchain.workers.pool import WorkerPool, check_temporary_folder
from tasks.toolchain.workers.scheduler import Scheduler

LEAST_FREE_BYTES = 64 * MIB
MOST_MEMORY = 0.8
"""Of the machine's, for toolchain workers; the rest is for devices' simulators, Prefect and us."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What the stages of one sweep work with."""

    store: Store
    workers: WorkerPool
    farm: Farm


def prepare(plan: Plan, *, device_lock: DeviceLock | None = None) -> Resources:
    """Open the store, find QNN, set the limits. Raises EnvironmentUnusable.

    Without a `device_lock` this process alone is kept from using a device twice at a time.
    """
    store = Store.at(plan.artifacts, plan.cache_folder)
    store.try_out()
    store.sweep_partial()
    if (free := shutil.disk_usage(store.root).free) < LEAST_FREE_BYTES:
        key = "cache_folder" if store.url else "artifacts"
        raise EnvironmentUnusable(
            f"{key}={store.root}: {free / MIB:.0f} MiB free on its disk, a sweep wants at least "
            f"{LEAST_FREE_BYTES / MIB:.0f}",
            remedy=f"free some, or set {key}=FOLDER to a folder on another disk",
        )
    check_temporary_folder()
    links = store.root / "toolchain"
    sdk = find_sdk(os.environ, links)
    environment = sdk.environment(os.environ)
    workers = WorkerPool(
        identity=identity(sdk),
        environment=environment,
        store=store,
        scheduler=scheduler(plan.limits),
        deadline_s=plan.limits.child_deadline_s,
        memory_bytes=int(plan.limits.child_memory_gib * GIB),
        estimates=expected_costs.estimates(store),
    )
    for device, soc in _native(plan):
        native_files(device, soc.arch, os.environ)
    farm = Farm(host_environment=environment, folder=store.root / "devices", device_lock=device_lock)
    return Resources(store=store, workers=workers, farm=farm)


def _native(plan: Plan) -> Iterator[tuple[DeviceConfig, SocConfig]]:
    """Devices with the native runner, and the SoCs that it is to run programs for."""
    for cell in plan.cells:
        for device in cell.request.devices:
            if device.runner is RunnerKind.native and cell.impossible is None and can_run_on(device, cell.request):
                yield device, cell.request.soc


def scheduler(limits: LimitsConfig) -> Scheduler:
    """This machine's cores, and the memory that toolchain workers may have together."""
    memory = psutil.virtual_memory().total * MOST_MEMORY if limits.memory_gib is None else limits.memory_gib * GIB
    return Scheduler(parallel=limits.parallel or os.cpu_count() or 1, memory_bytes=int(memory))
