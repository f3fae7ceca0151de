"""The resources of one sweep: its store, its worker processes and its devices, within the machine's limits."""

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import psutil

from qnnsweep.conf.devices import RunnerKind
from qnnsweep.conf.impossible import can_run_on
from qnnsweep.conf.plan import Plan
from qnnsweep.conf.schema import Request
from qnnsweep.conf.toolchains import ToolchainConfig
from qnnsweep.conf.units import GIB, MIB
from qnnsweep.flows.cells.toolchains import MODULES_OF_CALLS
from qnnsweep.flows.forecasts import costs
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.native_runner import native_files
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.scheduler import Scheduler
from qnnsweep.tasks.toolchain.workers.supervisor import CallCost, Supervisor

MIN_FREE_BYTES = 64 * MIB
MAX_MEMORY_SHARE = 0.8
"""The share of the machine's memory for worker processes; simulators, Prefect and this process use the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """The resources that the stages of one sweep use."""

    store: Store
    workers: WorkerPool
    """The workers of the first cell's toolchain."""
    farm: Farm
    """The farm whose processes on this machine use the first cell's toolchain."""
    others: Mapping[str, tuple[WorkerPool, Farm]] = field(
        default_factory=dict[str, tuple[WorkerPool, Farm]], hash=False
    )
    """The workers and the farm of each other toolchain, by name. All workers share the limits of this machine."""

    def workers_of(self, request: Request) -> WorkerPool:
        return self.others[request.toolchain.name][0] if request.toolchain.name in self.others else self.workers

    def farm_of(self, request: Request) -> Farm:
        return self.others[request.toolchain.name][1] if request.toolchain.name in self.others else self.farm

    def with_toolchains(self, toolchains: Iterable[ToolchainConfig]) -> "Resources":
        """Return these resources with workers and a farm for further toolchains. Raises EnvironmentUnusable."""
        others = dict(self.others)
        for toolchain in toolchains:
            if toolchain.name not in (self.workers.toolchain, *others):
                environment, of_runner, versions = toolchain_of(toolchain)
                pool = self.workers.of_toolchain(toolchain.name, environment, versions)
                others[toolchain.name] = pool, self.farm.with_environment(of_runner, pool.program_starter(of_runner))
        return replace(self, others=others)

    @property
    def costs(self) -> list[CallCost]:
        """The costs of the calls of all workers."""
        return [cost for workers in self._all_workers for cost in workers.costs]

    def count_calls(self, stages: Collection[str]) -> int:
        """Return the number of calls of these stages, in the workers of all toolchains."""
        return sum(count for workers in self._all_workers for stage, count in workers.calls.items() if stage in stages)

    @property
    def _all_workers(self) -> list[WorkerPool]:
        return [self.workers, *(workers for workers, _ in self.others.values())]


def prepare(plan: Plan) -> Resources:
    """Open the store, find QNN, and set the limits of workers. Raises EnvironmentUnusable if the plan cannot be run."""
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
    limits = plan.limits
    memory = psutil.virtual_memory().total * MAX_MEMORY_SHARE if limits.memory_gib is None else limits.memory_gib * GIB
    scheduler = Scheduler(parallel=limits.parallel or len(os.sched_getaffinity(0)), memory_bytes=int(memory))
    estimates = costs.estimates(store)
    first, *others = (cell.request.toolchain for cell in plan.cells)
    environment, of_runner, versions = toolchain_of(first)
    supervisor = Supervisor(
        environment=environment,
        store=store,
        scheduler=scheduler,
        deadline_s=limits.child_deadline_s,
        memory_bytes=int(limits.child_memory_gib * GIB),
        estimates=estimates,
        toolchain=first.name,
        modules=MODULES_OF_CALLS,
    )
    for cell in plan.cells:
        for device in cell.request.devices:
            is_native = device.runner is RunnerKind.native and device.native_folder is not None  # None of a past run
            if is_native and cell.impossible is None and can_run_on(device, cell.request):
                native_files(device, cell.request.soc.arch, os.environ)  # raises if the device's runner is not complete
    workers = WorkerPool(versions, supervisor)
    farm = Farm(host_environment=of_runner, folder=store.root / "devices", fork=workers.program_starter(of_runner))
    return Resources(store=store, workers=workers, farm=farm).with_toolchains(others)
