"""The imports that the fork server makes once, for all workers.

Error output is dropped. An import that fails here fails again in the worker, and the worker's log has the error.
"""
# ruff: noqa: F401

import gc
import os
import threading
from pathlib import Path

from tasks.toolchain.workers.server import end_with_caller

end_with_caller()
gc.disable()  # what is imported stays, so a fifth of the time of the imports would go to vain collections
_terminal = os.dup(2)
_nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 2)
try:
    import executorch.backends.qualcomm.export_utils
    import executorch.backends.qualcomm.utils.utils
    import executorch.backends.xnnpack.partition.xnnpack_partitioner
    import executorch.devtools
    import executorch.exir
    import torch
    import torchao.quantization.pt2e.quantize_pt2e
    from executorch.backends.qualcomm.utils import qnn_sdk_setup
    from torch.autograd import forward_ad
    from tqdm import tqdm

    import tasks.toolchain.lower
    import tasks.toolchain.quantize
    import tasks.toolchain.reference.kernels

    # Qualcomm's backend would run a program for a second or two to find the processor's vendor.
    qnn_sdk_setup._vendor_is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")

    # PyTorch compiles a few functions before the first derivative of a process.
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))

    # torch.fx draws progress bars, and the first bar of a process would create a semaphore shared between processes.
    tqdm.set_lock(threading.RLock())
finally:
    os.dup2(_terminal, 2)
    os.close(_terminal)
    os.close(_nowhere)
    gc.enable()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
