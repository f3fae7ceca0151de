"""One operator case, from its module to its outcome, in few calls. Forks of one process run them.

In the simulator of this machine, the programs run by the runner's own code, but without a new process per program. Then
nothing but the outcome leaves the folder of the case. A case for another device leaves its files in the store.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from qnnsweep.tasks.atlas.collection import model_of
from qnnsweep.tasks.atlas.states import of_comparison
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.comparison.capture import compare_outputs, compare_samples, joined
from qnnsweep.tasks.comparison.simulator import against_simulator
from qnnsweep.tasks.devices.runner_cli import DEBUG_OUTPUT, ETDUMP, OUTPUT_FOLDER, output_file, runner_arguments
from qnnsweep.tasks.devices.triage import missing_operators
from qnnsweep.tasks.records import (
    Blob,
    Bundle,
    Capture,
    CapturedMethod,
    CaseOutcome,
    Command,
    CompiledCase,
    DebugFiles,
    Launch,
    LaunchResult,
    LoweredProgram,
    OperatorCase,
    TensorSpec,
)
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints, runner
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.audit import audit
from qnnsweep.tasks.toolchain.workers.output import output_length, output_since

SIMULATOR = "simulator"
"""The name of the simulator of this machine in a capture that is no measurement of a device."""
_CALLS, _STAGE = Path("calls.json"), Path("stage")
"""The calls of the case and the stage that it has reached, in the folder of the case."""


class OutputDiffers(Exception):
    """The program returns an output of another size than the model."""


def get_ready(case: OperatorCase, options: CaseOptions) -> None:
    """Export a case and convert it to its edge program, so that forks of this process need not import anything."""
    in_scratch = _store()
    try:
        exported = entrypoints.export_model(model_of(case, options.model), in_scratch)
        quantized = entrypoints.quantize_model(exported, options.lowering.scheme, options.lowering.kind, in_scratch)
        entrypoints.edge_models(quantized, options.lowering, in_scratch)
    except Exception as error:  # noqa: BLE001 - the case itself will say what is wrong with it
        print(f"not prepared: {error}", flush=True)


def compile_case(
    _ready: None, folder: Path, case: OperatorCase, options: CaseOptions, store: Store | None = None
) -> LoweredProgram:
    """Compile a case. The stage that it has reached is in `folder`, and so are its files without a `store`."""
    os.chdir(folder)
    store, lowering = store or _store(), options.lowering
    _set_stage("export")
    exported = entrypoints.export_model(model_of(case, options.model), store)
    _CALLS.write_text(json.dumps([call.text for method in exported.methods for call in method.calls]))
    _set_stage("quantize")
    quantized = entrypoints.quantize_model(exported, lowering.scheme, lowering.kind, store)
    _set_stage("edge")
    models = entrypoints.edge_models(quantized, lowering, store)
    _set_stage("lower")
    return entrypoints.lower_model(models, quantized.model, options.soc, lowering, store)


def compare_case(
    _ready: None, folder: Path, case: OperatorCase, lowered: LoweredProgram, options: CaseOptions
) -> CaseOutcome:
    """Execute and compare a case that `compile_case` compiled in the same folder."""
    os.chdir(folder)
    store = _store()
    _set_stage("execute")
    capture = _captured(bundle(lowered, options.measure, store=store), store)
    return _compared(case, lowered, capture, options, store)


def simulate_case(_ready: None, folder: Path, packed: Bundle, store: Store) -> Capture:
    """Execute a case in the simulator of this machine. The files of the capture are in the store."""
    os.chdir(folder)
    _set_stage("execute")
    return Capture(device=SIMULATOR, methods=(_captured(packed, store),))


def compare_device(
    _ready: None, folder: Path, compiled: CompiledCase, capture: Capture, options: CaseOptions, store: Store
) -> CaseOutcome:
    """Compare a case that a device executed, with the host and with the simulator of this machine."""
    os.chdir(folder)
    lowered, simulated = compiled.lowered, compiled.simulated
    assert lowered is not None, "a device has executed it"
    (method,) = lowered.methods
    (measured,) = capture.methods
    outcome = _compared(compiled.case, lowered, measured, options, store)
    outcome = replace(outcome, executed_on=capture.device, simulator_why=compiled.not_simulated)
    if simulated is None:
        return outcome
    difference = against_simulator(method, measured, simulated.methods[0], store)
    return replace(
        outcome, simulator_equal=difference.equal, simulator_steps=difference.steps, simulator_why=difference.why
    )


def _compared(
    case: OperatorCase, lowered: LoweredProgram, capture: CapturedMethod, options: CaseOptions, store: Store
) -> CaseOutcome:
    """Compare an executed case with the host."""
    (method,), lowering = lowered.methods, options.lowering
    checks = audit(method, lowering.scheme, backend_of(lowering.kind), options.soc, options.toolchain)
    _set_stage("compare")
    outputs = compare_outputs(method, capture, options.comparison, store)
    parts = [compare_samples(method, capture, options.comparison, store)] if capture.debug else []
    return of_comparison(case, lowered, checks, joined(outputs, parts))


def stage_of(folder: Path) -> str:
    """Return the stage that a case has reached."""
    return (folder / _STAGE).read_text() if (folder / _STAGE).exists() else "export"


def calls_of(folder: Path) -> tuple[str, ...]:
    """Return the operator calls of a case; none if it was not exported. They are known even if the compiler aborts."""
    return tuple(json.loads((folder / _CALLS).read_text())) if (folder / _CALLS).exists() else ()


def _captured(packed: Bundle, store: Store) -> CapturedMethod:
    """Run every launch of the bundle with the runner's code, in this process."""
    for blob in packed.blobs:
        Path("blobs").mkdir(exist_ok=True)
        Path("blobs", blob.sha256).symlink_to(store.path(blob))
    files: dict[str, tuple[Blob, Blob, Blob | None]] = {}
    for launch in packed.launches:
        with _launch_folder(launch):
            _run(launch)
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


def _run(launch: Launch) -> None:
    """Run a launch in this process. Raises RuntimeError, with the operators that the runtime lacks, if it fails."""
    sys.argv, start = ["runner", *runner_arguments(launch)], output_length()
    try:
        if (code := runner.main()) != 0:
            raise RuntimeError(f"exit code {code}")
    except RuntimeError as error:
        lacking = missing_operators(output_since(start), "")
        what = f"ExecuTorch's runtime lacks {', '.join(lacking)}; " if lacking else ""
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


def _store() -> Store:
    """Return a store in the working directory."""
    return Store.at(str(Path("store").absolute()))


def _set_stage(stage: str) -> None:
    _STAGE.write_text(stage)
