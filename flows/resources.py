"""The resources of one sweep: its store, its worker processes and its devices, within the machine's limits."""

import os
import shutil
from dataclasses import dataclass

import psutil

from conf.impossible import can_run_on
from conf.plan import Plan
from conf.schema import RunnerKind
from conf.units import GIB, MIB
from flows import expected_costs
from tasks.devices.farm import DeviceLock, Farm
from tasks.devices.native_runner import native_files
from tasks.errors import EnvironmentUnusable
from tasks.storage.store import Store
from tasks.toolchain.backends.qnn.sdk import find_sdk, identity
from tasks.toolchain.workers.pool import WorkerPool, check_temporary_folder
from tasks.toolchain.workers.scheduler import Scheduler
from tasks.toolchain.workers.supervisor import Supervisor

MIN_FREE_BYTES = 64 * MIB
MAX_MEMORY_SHARE = 0.8
"""The share of the machine's memory for worker processes; simulators, Prefect and this process use the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """The resources that the stages of one sweep use."""

    store: Store
    workers: WorkerPool
    farm: Farm


def prepare(plan: Plan, *, device_lock: DeviceLock | None = None) -> Resources:
    """Open the store, find QNN, and set the limits of workers. Raises EnvironmentUnusable if the plan cannot be run.

    `device_lock`: locks a leased device against other processes. If None, a device is locked only in this process.
    """
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    store.check_writable()
    store.remove_stale_temporaries()
    if (free := shutil.disk_usage(store.root).free) < MIN_FREE_BYTES:
        key = "cache_folder" if store.url else "artifacts"
        raise EnvironmentUnusable(
            f"{key}={store.root}: {free / MIB:.0f} MiB free on its disk, but a sweep needs at least "
            f"{MIN_FREE_BYTES / MIB:.0f}",
            remedy=f"free some space, or set {key}=FOLDER to a folder on another disk",
        )
    check_temporary_folder()
    sdk = find_sdk(os.environ, store.root / "toolchain")
    environment, limits = sdk.environment(os.environ), plan.limits
    memory = psutil.virtual_memory().total * MAX_MEMORY_SHARE if limits.memory_gib is None else limits.memory_gib * GIB
    supervisor = Supervisor(
        environment=environment,
        store=store,
        scheduler=Scheduler(parallel=limits.parallel or os.cpu_count() or 1, memory_bytes=int(memory)),
        deadline_s=limits.child_deadline_s,
        memory_bytes=int(limits.child_memory_gib * GIB),
        estimates=expected_costs.estimates(store),
    )
    for cell in plan.cells:
        for device in cell.request.devices:
            if device.runner is RunnerKind.native and cell.impossible is None and can_run_on(device, cell.request):
                native_files(device, cell.request.soc.arch, os.environ)  # raises if the device's runner is not complete
    farm = Farm(host_environment=environment, folder=store.root / "devices", device_lock=device_lock)
    return Resources(store=store, workers=WorkerPool(identity(sdk), supervisor), farm=farm)
