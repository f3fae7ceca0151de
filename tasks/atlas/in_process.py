"""The programs of an operator case, executed by a runner's own code, without a new process per program."""

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.devices.runner_cli import (
    DEBUG_OUTPUT,
    ETDUMP,
    OUTPUT_FOLDER,
    last_lines,
    output_file,
    runner_arguments,
)
from qnnsweep.tasks.devices.triage import missing_operators
from qnnsweep.tasks.records import (
    Blob,
    Bundle,
    Capture,
    CapturedMethod,
    Command,
    DebugFiles,
    Launch,
    LaunchResult,
    LoweredProgram,
    TensorSpec,
)
from qnnsweep.tasks.records.atlas import LACKS_KERNEL
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.ort import program
from qnnsweep.tasks.toolchain.workers.output import output_length, output_since

SIMULATOR = "simulator"
"""The name of the simulator of this machine in a capture that is no measurement of a device."""


class OutputDiffers(Exception):
    """The program returns an output of another size than the model. It is no EvidenceError, whose log would be lost."""


def control_case(folder: Path, lowered: LoweredProgram, measure: MeasureConfig) -> Capture:
    """Execute a case that `compile_case` compiled in the same folder in ONNX Runtime.

    The process must not be a fork of one in which ExecuTorch has started QNN: QNN would crash in it.
    """
    os.chdir(folder)
    store, second = store_in(folder), folder / "second"
    second.mkdir(exist_ok=True)  # a process that was killed may have created it
    os.chdir(second)
    packed = bundle(lowered, measure, True, store=store).for_onnxruntime()
    return Capture(device=SIMULATOR, methods=(captured(packed, store, program.main),))


def captured(packed: Bundle, store: Store, run: Callable[[], int] = runner.main) -> CapturedMethod:
    """Run every launch of the bundle with a runner's code, in this process."""
    for left in ("blobs", "work"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    Path("blobs").mkdir()
    for blob in packed.blobs:
        Path("blobs", blob.sha256).symlink_to(store.path(blob))
    files: dict[str, tuple[Blob, Blob, Blob | None]] = {}
    for launch in packed.launches:
        with _launch_folder(launch):
            _run(launch, run)
            files[launch.name] = _outputs(launch, store)
    results = tuple(
        LaunchResult(
            launch=launch,
            folder=launch.folder,
            command=Command(argv=(*runner_arguments(launch),), exit_code=0, seconds=0.0),
            latencies_ms=(),
            log=launch.program,
        )
        for launch in packed.launches
    )
    outputs, etdump, _ = files["shipping"]
    debug: list[DebugFiles] = []
    for launch in packed.launches:
        if launch.debug:
            of_debug, log, buffer = files[launch.name]
            assert buffer is not None, "it is a debug launch"
            debug.append(DebugFiles(samples=launch.numbers, outputs=of_debug, etdump=log, buffer=buffer))
    return CapturedMethod(results=results, outputs=outputs, etdump=etdump, debug=tuple(debug))


@contextmanager
def _launch_folder(launch: Launch) -> Iterator[None]:
    """Change to the folder of a launch, from which the paths of blobs are those that they have on a device."""
    before = Path.cwd()
    folder = before / "work" / "lease" / launch.folder
    (folder / OUTPUT_FOLDER).mkdir(parents=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run(launch: Launch, run: Callable[[], int]) -> None:
    """Run a launch in this process. Raises RuntimeError, with the operators that the runtime lacks, if it fails."""
    sys.argv, start = ["runner", *runner_arguments(launch)], output_length()
    try:
        if (code := run()) != 0:
            raise RuntimeError(f"exit code {code}")
    except SystemExit as ended:
        raise RuntimeError(f"the {launch.title}: {last_lines(output_since(start).splitlines(), 1)}") from ended
    except RuntimeError as error:
        lacking = missing_operators(output_since(start), "")
        what = f"{LACKS_KERNEL} {', '.join(lacking)}; " if lacking else ""
        raise RuntimeError(f"{what}the {launch.title}: {error}") from error


def _outputs(launch: Launch, store: Store) -> tuple[Blob, Blob, Blob | None]:
    """Store the outputs, the etdump and the debug buffer of a launch."""
    tensors: Mapping[str, np.ndarray] = {
        tensor_key(sample, index): _output(Path(output_file(row, index)), index, spec)
        for row, sample in enumerate(launch.numbers)
        for index, spec in enumerate(launch.methods[0].outputs)
    }
    buffer = store.put_file(Path(DEBUG_OUTPUT)) if launch.debug else None
    return store.put_bytes(save(dict(tensors))), store.put_file(Path(ETDUMP)), buffer


def _output(file: Path, index: int, spec: TensorSpec) -> np.ndarray:
    elements = np.frombuffer(file.read_bytes(), spec.dtype)
    if elements.size != math.prod(spec.shape):
        raise OutputDiffers(f"output {index} has {elements.size} elements, and not the shape {list(spec.shape)}")
    return elements.reshape(spec.shape)


def store_in(folder: Path) -> Store:
    """Return the store of a case, in its folder."""
    return Store.at(str((folder / "store").absolute()))
