"""The imports of a fork server whose workers only execute and compare programs: a cached sweep compiles nothing."""
# ruff: noqa: F401

from qnnsweep.tasks.toolchain.workers.preloading import preloading

with preloading():
    # PyTorch imports these two late: the first derivative of a process needs both.
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes

    import qnnsweep.tasks.toolchain.reference.kernels
