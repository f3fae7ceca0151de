"""quantize: ExportedModel + scheme -> QuantizedModel."""

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
    """Prepare, calibrate and convert with the backend's quantizer; fp16 and fp32 pass through.

    For every SoC at once: which of them can compute it is for `lower` to find. Raises ToolchainError.
    `_backend_code`: identifies the code of a backend of another vendor, for the cache key alone.
    """
    whose = exported.model, scheme.name, kind
    done = workers.call("quantize", entrypoints.quantize_model, exported, scheme, kind, store, subject=whose)
    quantized = replace(done.value, log=done.log, seconds=done.seconds)
    if scheme.precision is Precision.quantized:
        return quantized
    return replace(quantized, exported=_uncalibrated(exported))


def _key_inputs(exported: ExportedModel, scheme: SchemeConfig, kind: str, backend_code: str = "") -> object:
    """Its name is a label. A float scheme asks for nothing else: the exported program passes through."""
    if scheme.precision is Precision.quantized:
        return exported, replace(scheme, name=""), kind, backend_code
    return _uncalibrated(exported)


def _uncalibrated(exported: ExportedModel) -> ExportedModel:
    """Without the samples that no float program depends on."""
    return replace(exported, calibration=None, calibration_samples=0)


quantize_task = stage(quantize, version=3, key_inputs=_key_inputs)
