"""Files of `torch.export.save` and of samples, read without running code that they contain.

`torch.export.load` unpickles objects, loads shared libraries and evaluates the expressions of dynamic shapes, if the
archive has them. A program that is data alone has none of these, except for pickled example inputs, which are tensors.
The module imports little, because its code is part of the cache keys of the models that it reads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch.export.pt2_archive._package import PT2ArchiveReader

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage.environment import changed_environment

_RECORDS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/\w+\.json|data/sample_inputs/\w+\.pt|"
    r"data/weights/(weight_\d+|\w+_config\.json)|data/constants/(tensor_\d+|\w+_config\.json)"
)
"""The names of the records of an archive that contains data alone: no custom objects and no compiled libraries."""
_EXPRESSION = re.compile(r"([su]\d+|FloorDiv|ModularIndexing|PythonMod|Mod|CleanDiv|CeilDiv|Max|Min|\d+|[-+*/(), ])*")
_ONLY_TENSORS = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
"""Makes every `torch.load` refuse all classes but tensors, even where torch asks for other classes."""


def program(file: str) -> torch.export.ExportedProgram:
    """Return the program in a file. Raises EvidenceError if the archive contains more than data."""
    where = Path(file).name
    with PT2ArchiveReader(file) as archive:
        names: list[str] = archive.get_file_names()
        for name in names:
            if not _RECORDS.fullmatch(name):
                raise EvidenceError(f"{where} contains {name!r}, which is no part of a program as data")
            if name.startswith("models/"):
                refuse_expressions(json.loads(archive.read_bytes(name)), where)
    try:
        with changed_environment(_ONLY_TENSORS):
            return torch.export.load(file)
    except UnpicklingError as error:
        raise EvidenceError(f"{where} contains more than tensors: {error}") from error


def refuse_expressions(program: Any, where: str) -> None:
    """Raise EvidenceError if the JSON of a program has an expression of a shape that is more than arithmetic."""
    for expression in _expressions(program):
        if not _EXPRESSION.fullmatch(expression):
            raise EvidenceError(f"{where} contains the expression {expression!r:.80}")


def samples(count: int, *, file: str, labels: Sequence[int | None] = ()) -> Iterator[Mapping[str, Any]]:
    """Yield the first `count` samples of a safetensors file, whose tensors are named `<sample>/<input>`.

    labels: one per sample, or none.
    """
    by_sample: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(file).items():
        number, _, name = key.partition("/")
        by_sample.setdefault(int(number), {})[name] = tensor
    for number in sorted(by_sample)[:count]:
        yield {"inputs": by_sample[number], "label": labels[number] if labels else None}


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
