"""The stage quantize: ExportedModel + scheme -> QuantizedModel."""

from dataclasses import replace

from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.records import ExportedModel, QuantizedModel, StageCall
from qnnsweep.tasks.repair.failed import Trials
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def quantize(
    exported: ExportedModel,
    scheme: SchemeConfig,
    kind: str,
    _backend_code: str = "",
    *,
    store: Store,
    workers: WorkerPool,
) -> QuantizedModel:
    """Prepare, calibrate and convert the model with the backend's quantizer. fp16 and fp32 models are not changed.

    The result does not depend on the SoC: only `lower` detects that an SoC does not support the quantized model.
    `_backend_code`: the digest of another vendor's backend, for the cache key. Raises ToolchainError if the call
    fails, with the operator that brings the error as far as trials find it.
    """
    subject = exported.model.name, scheme.name, kind
    try:
        done = workers.call("quantize", entrypoints.quantize_model, exported, scheme, kind, store, subject=subject)
    except ToolchainError as error:
        silent = workers.reporting(lambda: None)
        trials = Trials(exported=exported, scheme=scheme, kind=kind, store=store, workers=silent)
        if (named := trials.named(error)) is not None:
            raise named from error
        raise
    made = (*exported.made, StageCall(stage="quantize", seconds=done.seconds, log=done.log))
    quantized = replace(done.value, made=made)
    if scheme.precision is Precision.quantized:
        return quantized
    pairs = zip(quantized.methods, _uncalibrated(exported).methods, strict=True)
    return replace(quantized, methods=tuple(replace(method, exported=uncalibrated) for method, uncalibrated in pairs))


def _key_inputs(exported: ExportedModel, scheme: SchemeConfig, kind: str, backend_code: str = "") -> object:
    """Return what the result depends on. The scheme's name has no effect, and a float scheme has no effect at all."""
    if scheme.precision is Precision.quantized:
        return exported, replace(scheme, name=""), kind, backend_code
    return _uncalibrated(exported)


def _uncalibrated(exported: ExportedModel) -> ExportedModel:
    """Return the model without its calibration samples: a float program does not depend on them."""
    methods = (replace(method, calibration=None, calibration_samples=0) for method in exported.methods)
    return replace(exported, methods=tuple(methods))


quantize_task = stage(quantize, version=11, key_inputs=_key_inputs)
