"""The imports of a fork server whose workers compile."""
# ruff: noqa: F401

import threading

from qnnsweep.tasks.toolchain.workers.preloading import preloading

with preloading():
    from tqdm import tqdm

    import qnnsweep.tasks.toolchain.imports
    import qnnsweep.tasks.toolchain.lower
    import qnnsweep.tasks.toolchain.quantize
    import qnnsweep.tasks.toolchain.reference.kernels

    # torch.fx draws progress bars, and the first bar of a process would create a semaphore shared between processes.
    tqdm.set_lock(threading.RLock())
