"""Checks of everything that a sweep needs on this machine, with a remedy for each."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import psutil

from conf.units import GIB
from tasks.errors import EnvironmentUnusable
from tasks.storage.store import Store
from tasks.toolchain.backends.qnn_sdk import Sdk, find_sdk

LEAST_FREE_GIB = 5.0
LEAST_MEMORY_GIB = 6.0
_DEADLINE_S = 120
_BACKENDS = """
from executorch.extension.pybindings import portable_lib
print("backends:", *sorted(portable_lib._get_registered_backend_names()))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    what: str
    found: str
    ok: bool
    needed: bool = True
    """Whether a sweep cannot run without it."""
    remedy: str = ""
    """What to do if the check fails."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def checks(store: Store) -> list[Check]:
    """Return all checks, in the order in which to fix them. Creates nothing but the folder of the artifacts."""
    return [*_python(), *_packages(), *_machine(store), *_qnn(store), *_farm()]


def _python() -> Iterator[Check]:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield Check(what="Python", found=platform.python_version(), ok=supported, remedy="use Python 3.11 or 3.12")
    machine = platform.machine()
    yield Check(
        what="processor",
        found=machine,
        ok=machine == "x86_64",
        remedy="use x86_64 Linux, which QNN's compiler and simulator need",
    )


def _packages() -> Iterator[Check]:
    for name in ("torch", "executorch", "torchao", "prefect", "hydra-core"):
        version = _version(name)
        yield Check(
            what=name,
            found=version or "missing",
            ok=version is not None,
            remedy="run `pip install -c constraints.txt -e .`",
        )
    for name in ("torchvision", "timm"):
        version = _version(name)
        yield Check(
            what=name,
            found=version or "missing",
            ok=version is not None,
            needed=False,
            remedy="for the models of the zoo, run `pip install -c constraints.txt -e '.[zoo]'`",
        )


def _machine(store: Store) -> Iterator[Check]:
    memory = psutil.virtual_memory().total / GIB
    yield Check(
        what="memory",
        found=f"{memory:.0f} GiB, {os.cpu_count()} cores",
        ok=memory >= LEAST_MEMORY_GIB,
        needed=False,
        remedy=f"use a machine with {LEAST_MEMORY_GIB:g} GiB to lower large models",
    )
    try:
        store.try_out()
    except EnvironmentUnusable as error:
        yield Check(what="artifacts", found=str(error), ok=False, remedy="choose another folder with artifacts=FOLDER")
        return
    local = f", here in {store.root}" if store.url else ""
    free = shutil.disk_usage(store.root).free / GIB
    yield Check(
        what="artifacts",
        found=f"{store.place}, {free:.0f} GiB free{local}",
        ok=free >= LEAST_FREE_GIB,
        needed=False,
        remedy=f"free up space: a nightly sweep needs {LEAST_FREE_GIB:g} GiB",
    )


def _qnn(store: Store) -> Iterator[Check]:
    try:
        links = store.root / "toolchain"
        links.mkdir(parents=True, exist_ok=True)
        sdk = find_sdk(os.environ, links)
    except (EnvironmentUnusable, OSError) as error:
        remedy = error.remedy if isinstance(error, EnvironmentUnusable) else ""
        problem = error.problem if isinstance(error, EnvironmentUnusable) else str(error)
        yield Check(what="QNN", found=problem, ok=False, remedy=remedy or "run `pip install onnxruntime-qnn==2.5.0`")
        return
    yield Check(what="QNN", found=f"{sdk.build} from {sdk.origin}", ok=True)
    backends = _registered(sdk)
    yield Check(
        what="backends",
        found=backends,
        ok="QnnBackend" in backends,
        remedy="run `pip install executorch==1.5.1`, which has the QNN backend",
    )


def _registered(sdk: Sdk) -> str:
    """Return the backends that ExecuTorch's runtime has, or the last line of its error output."""
    ran = subprocess.run(
        [sys.executable, "-c", _BACKENDS],
        env=dict(os.environ) | sdk.environment(os.environ),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("backends: ")]
    if lines:
        return lines[0].removeprefix("backends: ").replace(" ", ", ")
    return next(reversed(ran.stderr.strip().splitlines()), f"exit code {ran.returncode}")


def _farm() -> Iterator[Check]:
    adb = shutil.which("adb")
    yield Check(
        what="adb", found=adb or "missing", ok=adb is not None, needed=False, remedy="for phones, run `apt install adb`"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
