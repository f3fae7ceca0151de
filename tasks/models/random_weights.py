"""Random weights whose activations are realistic, not too small, and whose outputs are not all close to zero."""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

LOGIT_SPREAD = 2.0
"""The standard deviation of the logits over the classes, approximately that of trained ImageNet classifiers."""


def calibrate_random_weights(module: nn.Module, images: torch.Tensor) -> None:
    """Set the statistics of every batch norm to those of `images` (float32 [N, …], N ≥ 2), and scale the last layer.

    The batch norms of a new module have mean 0 and variance 1. If the activations have another mean and variance, they
    shrink from layer to layer until the outputs are close to zero, and the SNR of the outputs means nothing. The linear
    layer or convolution that is executed last is initialised again (some classifiers initialise it with zeros) and
    scaled so that the spread of the module's outputs is `LOGIT_SPREAD`, if the module returns one tensor.

    Uses torch's random generator, and leaves the module in eval mode.
    """
    measure_batch_norms(module, lambda: module(images))
    _spread_head(module, images)


def measure_batch_norms(module: nn.Module, call: Callable[[], object]) -> None:
    """Set the statistics of every batch norm to those that it meets in `call`, which calls the module."""
    module.eval()  # dropout and stochastic depth stay off
    norms = [(norm, norm.momentum) for norm in module.modules() if isinstance(norm, BatchNorm)]
    for norm, _ in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average, not a moving one that still includes mean 0 and variance 1
        norm.train()
    with torch.no_grad():
        call()
    for norm, momentum in norms:
        norm.momentum = momentum
    module.eval()


def _spread_head(module: nn.Module, images: torch.Tensor) -> None:
    with torch.no_grad():
        head = _last_layer(module, images)
        if head is None or not isinstance(module(images), torch.Tensor):
            return
        nn.init.normal_(head.weight, std=1 / math.sqrt(head.weight[0].numel()))
        if head.bias is not None:
            nn.init.zeros_(head.bias)
        spread = module(images).std(dim=-1).mean()
        if spread > 0:
            head.weight *= LOGIT_SPREAD / spread


def _last_layer(module: nn.Module, images: torch.Tensor) -> nn.Linear | nn.Conv2d | None:
    """Return the linear layer or convolution that is executed last; None if the module executes no such layer."""
    executed: list[nn.Linear | nn.Conv2d] = []

    def record(layer: nn.Module, _: object) -> None:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            executed.append(layer)

    hooks = [layer.register_forward_pre_hook(record) for layer in module.modules()]
    module(images)
    for hook in hooks:
        hook.remove()
    return executed[-1] if executed else None
