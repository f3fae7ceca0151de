"""The imports of a fork server whose workers compile."""
# ruff: noqa: F401

import threading

from tqdm import tqdm

import qnnsweep.tasks.toolchain.imports
import qnnsweep.tasks.toolchain.lower
import qnnsweep.tasks.toolchain.preload_small
import qnnsweep.tasks.toolchain.quantize

# torch.fx draws progress bars, and the first bar of a process would create a semaphore shared between processes.
tqdm.set_lock(threading.RLock())
