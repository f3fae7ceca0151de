"""The code that runs in workers must be importable there: they inherit this `sys.path`, with this folder and
the benchmarks on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from safetensors.numpy import load

from qnnsweep.tasks.records import LoweredProgram
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk, identity
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.scheduler import Scheduler
from qnnsweep.tasks.toolchain.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

# Where it is set C's stdout has no buffer to lose, in no process: the workers must not depend on it.
os.environ.pop("PYTHONUNBUFFERED", None)

HERE = Path(__file__).parent
sys.path += [folder for folder in (str(HERE), str(HERE.parents[1] / "benchmarks")) if folder not in sys.path]


class WorkersWith(Protocol):
    def __call__(self, *, parallel: int = 2, deadline_s: float = 120, memory_bytes: int = 2**33) -> WorkerPool: ...


@pytest.fixture(scope="session")
def workers_with(resources: Resources) -> WorkersWith:
    """Workers of the store in `resources` with other limits, from the same fork server."""
    sdk = find_sdk(os.environ)

    def make(*, parallel: int = 2, deadline_s: float = 120, memory_bytes: int = 2**33) -> WorkerPool:
        supervisor = Supervisor(
            environment=sdk.environment(os.environ),
            store=resources.store,
            scheduler=Scheduler(parallel=parallel, memory_bytes=2**36),
            deadline_s=deadline_s,
            memory_bytes=memory_bytes,
        )
        return WorkerPool(identity(sdk), supervisor)

    return make


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A runner that has ended, and the files in its output folder."""

    exit_code: int
    stdout: str
    stderr: str
    outputs: dict[str, bytes]


class StartRunner(Protocol):
    def __call__(self, folder: Path, program: bytes, inputs: Sequence[Sequence[bytes]], *flags: str) -> Ran: ...


@pytest.fixture(scope="session")
def start_runner(resources: Resources) -> StartRunner:
    """Start the runner as a device does: in `folder`, on a program and one tuple of input files per inference."""
    environment = {"PATH": os.environ["PATH"]} | find_sdk(os.environ).environment({})

    def start(folder: Path, program: bytes, inputs: Sequence[Sequence[bytes]], *flags: str) -> Ran:
        (folder / "outputs").mkdir(parents=True)
        (folder / "model.pte").write_bytes(program)
        lines = []
        for number, files in enumerate(inputs):
            names = [f"input_{number}_{index}.raw" for index in range(len(files))]
            for name, data in zip(names, files, strict=True):
                (folder / name).write_bytes(data)
            lines.append(" ".join(names))
        (folder / "input_list.txt").write_text("".join(f"{line}\n" for line in lines))
        argv = [sys.executable, "-P", runner.__file__, *flags]
        done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
        return Ran(
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            outputs={path.name: path.read_bytes() for path in sorted((folder / "outputs").iterdir())},
        )

    return start


@pytest.fixture(scope="session")
def images(resources: Resources, lowered: LoweredProgram) -> list[tuple[bytes]]:
    """The evaluation samples of `lowered` as a runner's input files."""
    exported = lowered.quantized.exported
    tensors = load(resources.store.read(exported.methods[0].evaluation))
    return [(tensors[f"{sample}/image"].tobytes(),) for sample in range(len(exported.methods[0].sample_names))]
