"""The context in which a fork server imports what all its workers need.

Error output is dropped. An import that fails here fails again in the worker, and the worker's log has the error.
"""

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

from qnnsweep.tasks.toolchain.workers.server import end_with_caller


@contextmanager
def preloading() -> Generator[None]:
    end_with_caller()
    gc.disable()  # what is imported stays, so a fifth of the time of the imports would go to vain collections
    terminal = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
        _make_ready()
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)
        gc.enable()
        gc.freeze()  # a collection in a fork would copy every page that it looks at


def _make_ready() -> None:
    import torch
    from torch.autograd import forward_ad

    # PyTorch compiles a few functions before the first derivative of a process.
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))
