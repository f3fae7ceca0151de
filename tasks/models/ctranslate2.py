"""The weights of a file in CTranslate2's binary format, version 6."""

import struct
from pathlib import Path

import numpy as np
import torch

from qnnsweep.tasks.errors import RequestError

VERSION = 6
_DTYPES = ("<f4", "<i1", "<i2", "<i4", "<f2")
"""The dtype of a variable by its number in the file. bfloat16, the number 5, has no dtype in NumPy."""


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Return every variable of the file by its name; floats as float32. Raises RequestError if the file is another."""
    try:
        return _Reader(file.read_bytes()).weights()
    except (OSError, struct.error, ValueError, IndexError) as error:
        problem = f"not a file of weights of CTranslate2's version {VERSION}"
        raise RequestError(f"{file}: {problem}: {type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def weights(self) -> dict[str, torch.Tensor]:
        """Read the version, the name and the revision of the model's kind, and then the variables and their aliases."""
        version = self._number("I")
        if version != VERSION:
            raise ValueError(f"it has the version {version}")
        self._text()
        self._number("I")
        weights = dict(self._variable() for _ in range(self._number("I")))
        for _ in range(self._number("I")):
            alias, name = self._text(), self._text()
            weights[alias] = weights[name]
        return weights

    def _variable(self) -> tuple[str, torch.Tensor]:
        name = self._text()
        shape = [self._number("I") for _ in range(self._number("B"))]
        dtype = np.dtype(_DTYPES[self._number("B")])
        values = np.frombuffer(self._take(self._number("I")), dtype).reshape(shape)
        return name, torch.from_numpy(values.astype(np.float32 if dtype.kind == "f" else dtype))

    def _number(self, kind: str) -> int:
        code = f"<{kind}"
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _text(self) -> str:
        return self._take(self._number("H")).rstrip(b"\0").decode()

    def _take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        return self._data[start : self._position]
