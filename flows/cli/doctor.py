"""Checks of everything that a sweep needs on this machine. Every check has a remedy."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata

import psutil
from rich.table import Table
from rich.text import Text

from qnnsweep.conf.names import SHIPPED_BACKENDS
from qnnsweep.conf.units import GIB
from qnnsweep.flows.server import schedule_trial
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.report.format import plain_table
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.backend import DoctorCheck
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.prepared.probe import probe
from qnnsweep.tasks.toolchain.prepared.record import prepared_toolchains

LEAST_FREE_GIB = 5.0
LEAST_MEMORY_GIB = 6.0


def checks(store: Store) -> list[DoctorCheck]:
    """Return all checks. Problems should be fixed in this order. Creates nothing except the folder of the artifacts."""
    machine = [*_python(), *_packages(), *_machine(store)]
    with ThreadPoolExecutor() as threads:  # two processes try things while Prefect is imported here
        backends = threads.submit(lambda: list(_backends()))
        trial = threads.submit(schedule_trial.problem_here)
        server = list(_prefect_server())
        return [*machine, *backends.result(), *_toolchains(), *_farm(), *server, *_schedules(server, trial.result())]


def _python() -> Iterator[DoctorCheck]:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield DoctorCheck(what="Python", found=platform.python_version(), ok=supported, remedy="use Python 3.11 or 3.12")
    machine = platform.machine()
    yield DoctorCheck(
        what="processor",
        found=machine,
        ok=machine == "x86_64",
        remedy="use x86_64 Linux, which QNN's compiler and simulator need",
    )


def _packages() -> Iterator[DoctorCheck]:
    install, zoo = "run `pip install -c constraints.txt -e .`", ("torchvision", "timm")
    optional = dict.fromkeys(zoo, "for the models of the zoo, run `pip install -c constraints.txt -e '.[zoo]'`")
    optional["pytest"] = "for `qnnsweep atlas`, run `pip install -c constraints.txt pytest`"
    for name in ("torch", "executorch", "torchao", "prefect", "hydra-core", *optional):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "missing"
        remedy, needed = optional.get(name, install), name not in optional
        yield DoctorCheck(what=name, found=version, ok=version != "missing", needed=needed, remedy=remedy)


def _machine(store: Store) -> Iterator[DoctorCheck]:
    memory = psutil.virtual_memory().total / GIB
    yield DoctorCheck(
        what="memory",
        found=f"{memory:.0f} GiB, {os.cpu_count()} cores",
        ok=memory >= LEAST_MEMORY_GIB,
        needed=False,
        remedy=f"use a machine with {LEAST_MEMORY_GIB:g} GiB to lower large models",
    )
    try:
        store.check_writable()
    except EnvironmentUnusable as error:
        yield DoctorCheck(
            what="artifacts", found=str(error), ok=False, remedy="choose another folder with artifacts=FOLDER"
        )
        return
    local = f", here in {store.root}" if store.url else ""
    free = shutil.disk_usage(store.root).free / GIB
    yield DoctorCheck(
        what="artifacts",
        found=f"{store.location}, {free:.0f} GiB free{local}",
        ok=free >= LEAST_FREE_GIB,
        needed=False,
        remedy=f"free up space: a nightly sweep needs {LEAST_FREE_GIB:g} GiB",
    )


def _backends() -> Iterator[DoctorCheck]:
    for kind in SHIPPED_BACKENDS:
        yield from backend_of(kind).doctor()


def _toolchains() -> Iterator[DoctorCheck]:
    """Yield one check per toolchain of `qnnsweep toolchain add`: its files are read, and the probe runs again."""
    for toolchain in prepared_toolchains(os.environ):
        if isinstance(toolchain, EnvironmentUnusable):
            yield DoctorCheck(
                what="toolchain", found=toolchain.problem, ok=False, needed=False, remedy=toolchain.remedy
            )
            continue
        what = f"toolchain {toolchain.name}"
        try:
            toolchain.check_files(read_all=True)
            toolchain = replace(toolchain, probed=probe(toolchain.environment(os.environ)))
        except EnvironmentUnusable as error:
            remedy = error.remedy or f"run `qnnsweep toolchain remove {toolchain.name}`, then add it again"
            yield DoctorCheck(what=what, found=error.problem, ok=False, needed=False, remedy=remedy)
            continue
        bridge = "" if toolchain.bridge is None else f", with the bridge `{toolchain.bridge}`"
        changes = f"; {toolchain.changes}" if toolchain.changes else ""
        lost = "" if toolchain.provisional is None else f"; provisional: {toolchain.provisional}"
        yield DoctorCheck(
            what=what,
            found=f"{toolchain.build} from {toolchain.origin}{bridge}{changes}{lost}",
            ok=not lost,
            needed=False,
            remedy="do not compare it with other releases: it does not do what is asked",
        )


def _farm() -> Iterator[DoctorCheck]:
    adb = shutil.which("adb")
    yield DoctorCheck(
        what="adb", found=adb or "missing", ok=adb is not None, needed=False, remedy="for phones, run `apt install adb`"
    )


def _prefect_server() -> Iterator[DoctorCheck]:
    configure_prefect()
    from prefect.settings import PREFECT_API_URL

    from qnnsweep.flows.server import connect

    if (url := PREFECT_API_URL.value()) is None:
        yield DoctorCheck(what="Prefect server", found="none: each run starts a temporary server", ok=True, remedy="")
        return
    try:
        connect.check_login()
    except EnvironmentUnusable as error:
        yield DoctorCheck(what="Prefect server", found=error.problem, ok=False, remedy=error.remedy)
        return
    try:
        connect.check_protected()
    except EnvironmentUnusable as error:
        yield DoctorCheck(what="Prefect server", found=error.problem, ok=False, needed=False, remedy=error.remedy)
        return
    login = "without a login, which you accept" if connect.is_open() else "with a login"
    yield DoctorCheck(what="Prefect server", found=f"{url}, {login}", ok=True, remedy="")


def _schedules(server: Sequence[DoctorCheck], problem_here: str | None) -> Iterator[DoctorCheck]:
    """Yield whether sweeps start on a schedule: here, and on the configured server if the checks of it passed."""
    from prefect.settings import PREFECT_API_URL

    from qnnsweep.flows.server import schedules

    try:
        found = schedules.check_here(problem_here)
        if PREFECT_API_URL.value() is not None and all(check.ok for check in server):
            schedules.check_server()
            found = f"{found}, and the server schedules runs"
    except EnvironmentUnusable as error:
        yield DoctorCheck(what="schedules", found=error.problem, ok=False, needed=False, remedy=error.remedy)
        return
    yield DoctorCheck(what="schedules", found=found, ok=True, remedy="")


def checks_table(checks: Sequence[DoctorCheck]) -> Table:
    table = plain_table("", "what", "found", "what to do")
    for check in checks:
        mark = Text("✓", "green") if check.ok else Text("✗", "bold red") if check.needed else Text("–", "yellow")
        table.add_row(mark, check.what, Text(check.found), Text("" if check.ok else check.remedy))
    return table
