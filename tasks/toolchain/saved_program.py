"""The saved programs of a store, which come from places that others can write to."""

import torch

from qnnsweep.tasks.models.program_file import program
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.store import Store


def load_program(store: Store, blob: Blob) -> torch.export.ExportedProgram:
    """Load the program in the blob. Raises EvidenceError if the archive contains more than data."""
    store.verify(blob)
    return program(str(store.path(blob)))
