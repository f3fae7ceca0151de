"""export: a model's configuration -> ExportedModel."""

from dataclasses import replace

from conf.schema import ModelConfig
from tasks.records import ExportedModel
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain import entrypoints
from tasks.toolchain.workers.pool import WorkerPool


def export(model: ModelConfig, _code: str, *, store: Store, workers: WorkerPool) -> ExportedModel:
    """Build the module, take its samples, answer them in eager PyTorch, and trace it.

    `_code`, for the cache key alone: the digest of the source behind the model's functions
    (`tasks.toolchain.source_digest`).
    Raises RequestError when the model's own configuration does not fit, ToolchainError when torch.export fails.
    """
    done = workers.call("export", entrypoints.export_model, model, store, subject=(model.name,))
    return replace(done.value, log=done.log, seconds=done.seconds)


def _key_inputs(model: ModelConfig, code: str) -> object:
    """Its name is a label, and what its outputs mean is `compare`'s affair."""
    return replace(model, name="", classifier=False), code


export_task = stage(export, version=4, key_inputs=_key_inputs)
