"""A reader of mutated QNN context binaries. Imported in workers: QNN's native reader does not check what it reads."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.toolchain.backends.qnn.context import read_context
from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER

MAGIC = (0x5678ABCD).to_bytes(4, "little")
HEADER_BYTES = 256
METADATA_BYTES = 4096


def read_mutated_contexts(program: bytes, most: int) -> int:
    """Read mutated copies of a program's context binary, until one of them ends this process, or `most` were read."""
    start = program.index(MAGIC)
    size = int.from_bytes(program[start + 12 : start + 20], "little")
    context = program[start : start + HEADER_BYTES + size]
    library = Path(os.environ["QNN_SDK_ROOT"], LIBRARY_FOLDER, "libQnnSystem.so")
    read_context(context, library)
    for seed in range(most):
        chance, mutated = random.Random(seed), bytearray(context)
        for _ in range(chance.choice([1, 1, 2, 4])):
            mutated[HEADER_BYTES + chance.randrange(METADATA_BYTES)] ^= 1 << chance.randrange(8)
        with suppress(EvidenceError):
            read_context(bytes(mutated), library)
    return most
