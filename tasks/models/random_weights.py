"""Random weights made fit for evidence: activations of ordinary size, answers that are not all near zero."""

import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

LOGIT_SPREAD = 2.0
"""Standard deviation of the logits over the classes: about what trained ImageNet classifiers give."""


def calibrate_random_weights(module: nn.Module, images: torch.Tensor) -> None:
    """Give every batch norm the statistics of `images` (float32 [N, …], N ≥ 2), and spread the last linear layer.

    A fresh module's batch norms believe in mean 0 and variance 1. Where that is wrong the activations shrink layer by
    layer until the answers are near zero, and an SNR of nearly nothing says nothing. The last `nn.Linear` is drawn
    anew (some classifiers begin with zeros there) and scaled until its outputs spread by `LOGIT_SPREAD`.

    Draws from torch's generator; leaves the module in eval mode.
    """
    _measure_batch_norms(module, images)
    _spread_head(module, images)


def _measure_batch_norms(module: nn.Module, images: torch.Tensor) -> None:
    module.eval()  # dropout and stochastic depth stay off
    norms = [(norm, norm.momentum) for norm in module.modules() if isinstance(norm, BatchNorm)]
    for norm, _ in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average, not a moving one that remembers mean 0 and variance 1
        norm.train()
    with torch.no_grad():
        module(images)
    for norm, momentum in norms:
        norm.momentum = momentum
    module.eval()


def _spread_head(module: nn.Module, images: torch.Tensor) -> None:
    *_, head = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        nn.init.normal_(head.weight, std=1 / math.sqrt(head.in_features))
        if head.bias is not None:
            nn.init.zeros_(head.bias)
        head.weight *= LOGIT_SPREAD / module(images).std(dim=-1).mean()
