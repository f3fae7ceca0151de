"""The stage export: ModelConfig -> ExportedModel."""

from dataclasses import replace

from qnnsweep.conf.models import ModelConfig
from qnnsweep.tasks.records import ExportedModel, StageCall
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def export(model: ModelConfig, _code: str, *, store: Store, workers: WorkerPool) -> ExportedModel:
    """Create the module and its samples, compute the outputs in eager PyTorch, and export the module.

    `_code`: the digest of the model's code, for the cache key; see `qnnsweep.tasks.toolchain.source_digest`.
    Raises RequestError if the model's configuration does not match its module, and ToolchainError if torch.export
    fails.
    """
    done = workers.call("export", entrypoints.export_model, model, store, subject=(model.name,))
    return replace(done.value, made=(StageCall(stage="export", seconds=done.seconds, log=done.log),))


def _key_inputs(model: ModelConfig, code: str) -> object:
    """Return what the result depends on. The model's name has no effect, and only `compare` uses `classifier`."""
    return replace(model, name="", classifier=False), code


export_task = stage(export, version=16, key_inputs=_key_inputs)
