"""What this machine has and lacks for a sweep, and what to do about it."""

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

from tasks.errors import EnvironmentUnusable
from tasks.storage.store import Store
from tasks.toolchain.backends.qnn_sdk import Sdk, find_sdk

GIB = 2**30
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
    """Nothing runs without it."""
    remedy: str = ""
    """What to do when it is not ok."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def checks(store: Store) -> list[Check]:
    """Everything a sweep needs, in the order to mend it. Leaves nothing behind but the place of artifacts."""
    return [*_python(), *_packages(), *_machine(store), *_qnn(store), *_farm()]


def _python() -> Iterator[Check]:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield Check(what="Python", found=platform.python_version(), ok=supported, remedy="use Python 3.11 or 3.12")
    machine = platform.machine()
    yield Check(
        what="processor", found=machine, ok=machine == "x86_64", remedy="QNN's compiler and simulator need x86_64 Linux"
    )


def _packages() -> Iterator[Check]:
    for name in ("torch", "executorch", "torchao", "prefect", "hydra-core"):
        version = _version(name)
        yield Check(
            what=name, found=version or "missing", ok=version is not None, remedy="pip install -c constraints.txt -e ."
        )
    for name in ("torchvision", "timm"):
        version = _version(name)
        yield Check(
            what=name,
            found=version or "missing",
            ok=version is not None,
            needed=False,
            remedy="for the models of the zoo: pip install -c constraints.txt -e '.[zoo]'",
        )


def _machine(store: Store) -> Iterator[Check]:
    memory = psutil.virtual_memory().total / GIB
    yield Check(
        what="memory",
        found=f"{memory:.0f} GiB, {os.cpu_count()} cores",
        ok=memory >= LEAST_MEMORY_GIB,
        needed=False,
        remedy=f"large models want {LEAST_MEMORY_GIB:g} GiB to be lowered",
    )
    try:
        store.try_out()
    except EnvironmentUnusable as error:
        yield Check(what="artifacts", found=str(error), ok=False, remedy="choose another folder: artifacts=FOLDER")
        return
    where = f" in {store.root}, this machine's folder for it" if store.url else ""
    free = shutil.disk_usage(store.root).free / GIB
    yield Check(
        what="artifacts",
        found=f"{store.place}, {free:.0f} GiB free{where}",
        ok=free >= LEAST_FREE_GIB,
        needed=False,
        remedy=f"a nightly sweep wants {LEAST_FREE_GIB:g} GiB",
    )


def _qnn(store: Store) -> Iterator[Check]:
    try:
        links = store.root / "toolchain"
        links.mkdir(parents=True, exist_ok=True)
        sdk = find_sdk(os.environ, links)
    except (EnvironmentUnusable, OSError) as error:
        remedy = error.remedy if isinstance(error, EnvironmentUnusable) else ""
        found = error.problem if isinstance(error, EnvironmentUnusable) else str(error)
        yield Check(what="QNN", found=found, ok=False, remedy=remedy or "pip install onnxruntime-qnn==2.5.0")
        return
    yield Check(what="QNN", found=f"{sdk.build} from {sdk.origin}", ok=True)
    said = _registered(sdk)
    yield Check(
        what="backends",
        found=said,
        ok="QnnBackend" in said,
        remedy="this executorch has no QNN backend: pip install executorch==1.5.1",
    )


def _registered(sdk: Sdk) -> str:
    """The backends that ExecuTorch's runtime knows, or the last thing it said."""
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
        what="adb", found=adb or "missing", ok=adb is not None, needed=False, remedy="for phones: apt install adb"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
