"""The imports of a fork server whose workers only execute and compare programs: a cached sweep compiles nothing."""
# ruff: noqa: F401

import torch

# PyTorch imports these two late: the first derivative of a process needs both.
import torch._dynamo
import torch.fx.experimental.symbolic_shapes
from torch.autograd import forward_ad

import qnnsweep.tasks.toolchain.reference.kernels

torch.set_num_threads(1)  # a process that has computed in threads must not be forked
# PyTorch compiles a few functions before the first derivative of a process.
with forward_ad.dual_level():
    forward_ad.make_dual(torch.zeros(1), torch.zeros(1))
