"""Loads a saved `torch.export` program without running code that it contains.

A program comes from a store that others can write to. `torch.export.load` unpickles objects, loads shared libraries and
evaluates the expressions of dynamic shapes, if the archive has them. The programs that qnnsweep saves have none of
these, except for pickled example inputs, which consist of tensors.
"""

import json
import re
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any

import torch
from torch.export.pt2_archive._package import PT2ArchiveReader

from qnnsweep.tasks.environment import changed_environment
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.store import Store

_RECORDS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/\w+\.json|data/sample_inputs/\w+\.pt|"
    r"data/weights/(weight_\d+|\w+_config\.json)|data/constants/(tensor_\d+|\w+_config\.json)"
)
"""The names of the records of an archive that contains data alone: no custom objects and no compiled libraries."""
_EXPRESSION = re.compile(r"([su]\d+|FloorDiv|ModularIndexing|PythonMod|Mod|CleanDiv|CeilDiv|Max|Min|\d+|[-+*/(), ])*")
_ONLY_TENSORS = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
"""Makes every `torch.load` refuse all classes but tensors, even where torch asks for other classes."""


def load_program(store: Store, blob: Blob) -> torch.export.ExportedProgram:
    """Load the program in the blob. Raises EvidenceError if the archive contains more than data."""
    store.verify(blob)
    path = str(store.path(blob))
    with PT2ArchiveReader(path) as archive:
        names: list[str] = archive.get_file_names()
        for name in names:
            if not _RECORDS.fullmatch(name):
                raise EvidenceError(f"blob {blob.sha256} contains {name!r}, which is no part of a program as data")
            if name.startswith("models/"):
                for expression in _expressions(json.loads(archive.read_bytes(name))):
                    if not _EXPRESSION.fullmatch(expression):
                        raise EvidenceError(f"blob {blob.sha256} contains the expression {expression!r:.80}")
    try:
        with changed_environment(_ONLY_TENSORS):
            return torch.export.load(path)
    except UnpicklingError as error:
        raise EvidenceError(f"blob {blob.sha256} contains more than tensors: {error}") from error


def _expressions(value: Any) -> Iterator[str]:
    """Yield every expression of a dynamic shape in the JSON of a program."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "expr_str":
                yield str(item)
            yield from _expressions(item)
    elif isinstance(value, list):
        for item in value:
            yield from _expressions(item)
