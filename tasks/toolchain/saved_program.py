"""The saved programs of a store, which come from places that others can write to."""

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from qnnsweep.tasks.models.program_file import program
from qnnsweep.tasks.records import Blob, ExportedMethod
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.tensors import flat_outputs


def load_program(store: Store, blob: Blob) -> torch.export.ExportedProgram:
    """Load the program in the blob. Raises EvidenceError if the archive contains more than data."""
    store.verify(blob)
    return program(str(store.path(blob)))


def exported_call(store: Store, exported: ExportedMethod) -> Callable[..., list[NDArray[Any]]]:
    """Return the exported program, which computes what eager PyTorch computes, as a function of a sample's tensors."""
    module = load_program(store, exported.program).module()

    def run(*inputs: torch.Tensor) -> list[NDArray[Any]]:
        with torch.no_grad():
            answer = module(*inputs)
        return [tensor.contiguous().numpy() for tensor in flat_outputs(answer).values()]

    return run
