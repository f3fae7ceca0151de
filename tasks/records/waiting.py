"""The words between a runner that waits for the host and the host, which computes operators on the CPU for it.

The runner writes what the operators read to files `<ASKED>/<digest>_<position>`, lists its requests in the file
`REQUESTS`, and ends with the exit code `WAITING`. The host writes results to files of the same names in a new folder,
whose name begins with `ANSWERS`, and starts the runner again. This module is copied to devices.
"""

from collections.abc import Iterator, Sequence
from typing import Any

WAITING = 75
"""EX_TEMPFAIL of sysexits.h."""
REQUESTS = "requests.json"
ASKED = "asked"
ANSWERS = "answers"
KERNELS = "--kernels"
"""The first argument of the runner's archive as a program of the host."""


def tensor_positions(arguments: Sequence[Any]) -> Iterator[str]:
    """Yield the positions of the tensors in the arguments of a call; see `qnnsweep.tasks.toolchain.ort.parts`."""
    for argument in arguments:
        if "value" in argument:
            yield argument["value"]
        yield from tensor_positions(argument.get("list", ()))
