"""The stage quantize: ExportedModel + scheme -> QuantizedModel."""

from dataclasses import replace

from conf.schema import Precision, SchemeConfig
from tasks.records import ExportedModel, QuantizedModel
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain import entrypoints
from tasks.toolchain.workers.pool import WorkerPool


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

    The result is the same for all SoCs: only `lower` detects that an SoC does not support it. Raises ToolchainError.
    `_backend_code`: identifies the code of a backend of another vendor, for the cache key.
    """
    subject = exported.model, scheme.name, kind
    done = workers.call("quantize", entrypoints.quantize_model, exported, scheme, kind, store, subject=subject)
    quantized = replace(done.value, log=done.log, seconds=done.seconds)
    if scheme.precision is Precision.quantized:
        return quantized
    return replace(quantized, exported=_uncalibrated(exported))


def _key_inputs(exported: ExportedModel, scheme: SchemeConfig, kind: str, backend_code: str = "") -> object:
    """Return what the result depends on. The scheme's name has no effect, and a float scheme changes nothing."""
    if scheme.precision is Precision.quantized:
        return exported, replace(scheme, name=""), kind, backend_code
    return _uncalibrated(exported)


def _uncalibrated(exported: ExportedModel) -> ExportedModel:
    """Return the model without its calibration samples: a float program does not depend on them."""
    return replace(exported, calibration=None, calibration_samples=0)


quantize_task = stage(quantize, version=3, key_inputs=_key_inputs)
