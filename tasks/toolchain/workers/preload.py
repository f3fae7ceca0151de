"""What the fork server imports once, for all its children.

Its chatter is dropped: an import that fails here fails again in the child, whose log is kept.
"""
# ruff: noqa: F401

import os
import threading

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
    from executorch.backends.qualcomm.utils.qnn_sdk_setup import disable_mkldnn_on_amd
    from tqdm import tqdm

    # Qualcomm's backend asks a program of its own, for a second or two, whose processor this is: once in all processes.
    with torch.backends.mkldnn.flags(enabled=bool(torch.backends.mkldnn.enabled)):
        disable_mkldnn_on_amd()

    # torch.fx draws progress bars, and each first bar of a process would make a semaphore shared between processes.
    tqdm.set_lock(threading.RLock())
finally:
    os.dup2(_terminal, 2)
    os.close(_terminal)
    os.close(_nowhere)
