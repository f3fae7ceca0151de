"""One operator case, from its module to its outcome, in few calls. Forks of one process run them.

In the simulator of this machine, the programs run by the runner's own code, but without a new process per program. Then
nothing but the outcome leaves the folder of the case. A case for another device leaves its files in the store.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from qnnsweep.tasks.atlas.collection import model_of
from qnnsweep.tasks.atlas.in_process import SIMULATOR, captured, store_in
from qnnsweep.tasks.atlas.states import of_comparison
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.comparison.capture import compare_outputs, compare_samples, joined
from qnnsweep.tasks.comparison.runtimes import equal_tensors
from qnnsweep.tasks.comparison.simulator import against_simulator
from qnnsweep.tasks.errors import RuntimesDiffer
from qnnsweep.tasks.records import (
    Bundle,
    Capture,
    CapturedMethod,
    CaseOutcome,
    CompiledCase,
    LoweredProgram,
    OperatorCase,
)
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.audit import audit

_CALLS, _STAGE = Path("calls.json"), Path("stage")
"""The calls of the case and the stage that it has reached, in the folder of the case."""


def get_ready(case: OperatorCase, options: CaseOptions) -> None:
    """Export a case and convert it to its edge program, so that forks of this process need not import anything."""
    in_scratch = store_in(Path())
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
    store, lowering = store or store_in(Path()), options.lowering
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
    _ready: None,
    folder: Path,
    case: OperatorCase,
    lowered: LoweredProgram,
    options: CaseOptions,
    control: Capture | None = None,
) -> CaseOutcome:
    """Execute and compare a case that `compile_case` compiled in the same folder.

    `control`: the capture of ONNX Runtime. If its tensors are others, `runtimes_differ` says so, and no operator is
    blamed.
    """
    os.chdir(folder)
    store = store_in(Path())
    _set_stage("execute")
    capture = captured(bundle(lowered, options.measure, store=store), store)
    outcome = _compared(case, lowered, capture, options, store)
    if control is None:
        return outcome
    try:
        equal = equal_tensors(Capture(device=SIMULATOR, methods=(capture,)), control, store)
    except RuntimesDiffer as error:
        return replace(outcome, runtimes_differ=str(error))
    return replace(outcome, equal_tensors=equal)


def simulate_case(_ready: None, folder: Path, packed: Bundle, store: Store) -> Capture:
    """Execute a case in the simulator of this machine. The files of the capture are in the store."""
    os.chdir(folder)
    _set_stage("execute")
    return Capture(device=SIMULATOR, methods=(captured(packed, store),))


def compare_device(
    _ready: None, folder: Path, compiled: CompiledCase, capture: Capture, options: CaseOptions, store: Store
) -> CaseOutcome:
    """Compare a case that a device executed, with the host and with the simulator of this machine."""
    os.chdir(folder)
    _set_stage("compare")
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


def _set_stage(stage: str) -> None:
    _STAGE.write_text(stage)
