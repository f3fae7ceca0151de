"""The passes and operators that a prepared toolchain switches off. Environment variables of its processes name them.

Imported only in workers, because it imports ExecuTorch.
"""

import os
from typing import Any

from executorch.backends.qualcomm._passes.qnn_pass_manager import QnnPassManager, get_qnn_pass_manager_cls
from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

from qnnsweep.tasks.toolchain.backends.qnn.sdk import OPERATORS_SKIPPED, PASSES_OFF


def pass_manager() -> type[QnnPassManager]:
    """Return ExecuTorch's pass manager of the HTP, without the passes that the toolchain switches off.

    ExecuTorch itself uses this class for the annotation and for the preparation of a delegated graph. Therefore the
    class is changed, once per process.
    """
    manager = get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)
    off = _listed(PASSES_OFF)
    if off and "_qnnsweep_without" not in vars(manager):
        manager._qnnsweep_without = off  # type: ignore[attr-defined]
        activations = manager.get_default_pass_activations
        manager.get_default_pass_activations = classmethod(  # type: ignore[assignment, method-assign]
            lambda _cls: [(entry, active and entry.__name__ not in off) for entry, active in activations()]
        )
        for name in ("get_annotation_passes", "get_export_passes", "get_preprocess_passes"):
            setattr(manager, name, classmethod(_without(getattr(manager, name), off)))
    return manager


def skipped_operators() -> set[str]:
    """Return the operators that the toolchain keeps on the CPU, such as `aten.relu.default`."""
    return _listed(OPERATORS_SKIPPED)


def pass_names() -> list[str]:
    """Return the names of all passes of the HTP, sorted."""
    manager = get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)
    lists = (manager.get_annotation_passes(), manager.get_export_passes(), manager.get_preprocess_passes(True))
    active = [entry for entry, is_active in manager.get_default_pass_activations() if is_active]
    return sorted({entry.__name__ for passes in (active, *lists) for entry in passes})


def _without(passes: Any, off: set[str]) -> Any:
    return lambda _cls, *arguments, **options: [
        entry for entry in passes(*arguments, **options) if entry.__name__ not in off
    ]


def _listed(variable: str) -> set[str]:
    return set(filter(None, os.environ.get(variable, "").split(",")))
