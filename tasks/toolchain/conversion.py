"""The context in which programs are converted and compiled."""

from collections.abc import Iterator
from contextlib import contextmanager

from qnnsweep.tasks.toolchain.late_code import generated_late
from qnnsweep.tasks.toolchain.shared_copies import sharing_tensors


@contextmanager
def converting() -> Iterator[None]:
    """Within this context, ExecuTorch's passes and copies do not repeat work whose result nothing reads."""
    with sharing_tensors(), generated_late():
        yield
