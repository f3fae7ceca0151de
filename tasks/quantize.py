"""The stage quantize: ExportedModel + scheme -> QuantizedModel."""

from dataclasses import replace

from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.records import ExportedModel, QuantizedModel
from qnnsweep.tasks.records.methods import for_each_method, methods_of, of_methods
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
    `_backend_code`: the digest of another vendor's backend, for the cache key. Raises ToolchainError if the call fails.
    """
    subject = exported.model, scheme.name, kind
    done = workers.call("quantize", entrypoints.quantize_model, exported, scheme, kind, store, subject=subject)
    quantized = replace(done.value, log=done.log, seconds=done.seconds)
    if scheme.precision is Precision.quantized:
        return quantized
    floats = (replace(method, exported=_uncalibrated(method.exported)) for method in methods_of(quantized))
    return of_methods(floats)


def _key_inputs(exported: ExportedModel, scheme: SchemeConfig, kind: str, backend_code: str = "") -> object:
    """Return what the result depends on. The scheme's name has no effect, and a float scheme has no effect at all."""
    if scheme.precision is Precision.quantized:
        return exported, replace(scheme, name=""), kind, backend_code
    return for_each_method(exported, _uncalibrated)


def _uncalibrated(exported: ExportedModel) -> ExportedModel:
    """Return the model without its calibration samples: a float program does not depend on them."""
    return replace(exported, calibration=None, calibration_samples=0)


quantize_task = stage(quantize, version=5, key_inputs=_key_inputs)
