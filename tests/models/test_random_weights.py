"""The calibration of random weights changes the batch norms and the last layer, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qnnsweep.tasks.models.random_weights import LOGIT_SPREAD, calibrate_random_weights


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 5 + 2


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*layers)


def test_every_batch_norm_ends_with_the_statistics_of_the_images(model: nn.Sequential, images: torch.Tensor) -> None:
    calibrate_random_weights(model, images)
    first, second = model[1], model[4]
    before = model[0](images)
    torch.testing.assert_close(first.running_mean, before.mean((0, 2, 3)))
    torch.testing.assert_close(first.running_var, before.var((0, 2, 3)))
    # During the measurement the first batch norm used the variance of the batch, which is biased.
    torch.testing.assert_close(second.running_mean, model[:4](images).mean((0, 2, 3)), rtol=0.02, atol=0.02)


def test_the_logits_spread_as_those_of_a_trained_classifier(model: nn.Module, images: torch.Tensor) -> None:
    calibrate_random_weights(model, images)
    torch.testing.assert_close(model(images).std(dim=-1).mean().item(), LOGIT_SPREAD, rtol=1e-5, atol=0)


def test_a_last_layer_of_zeros_gets_the_same_spread(model: nn.Sequential, images: torch.Tensor) -> None:
    model[-1].load_state_dict({name: torch.zeros_like(value) for name, value in model[-1].state_dict().items()})
    calibrate_random_weights(model, images)
    torch.testing.assert_close(model(images).std(dim=-1).mean().item(), LOGIT_SPREAD, rtol=1e-5, atol=0)


def test_the_module_ends_in_eval_mode_with_its_own_momentum(model: nn.Sequential, images: torch.Tensor) -> None:
    calibrate_random_weights(model, images)
    assert not any(layer.training for layer in model.modules())
    assert (model[1].momentum, model[4].momentum) == (0.1, 0.1)


def test_a_model_without_batch_norms_gets_the_same_spread(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16), nn.Linear(16, 5, bias=False))
    calibrate_random_weights(model, images)
    torch.testing.assert_close(model(images).std(dim=-1).mean().item(), LOGIT_SPREAD, rtol=1e-5, atol=0)


def test_the_same_seed_gives_the_same_bits(images: torch.Tensor) -> None:
    answers = []
    for _ in range(2):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
        calibrate_random_weights(model, images)
        answers.append(model(images))
    assert torch.equal(*answers)


def test_a_last_layer_that_is_a_convolution_gets_the_same_spread(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    head = nn.Conv2d(4, 10, 1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), head, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    calibrate_random_weights(model, images)
    torch.testing.assert_close(model(images).std(dim=-1).mean().item(), LOGIT_SPREAD, rtol=1e-5, atol=0)


def test_a_model_without_such_a_layer_is_not_scaled(images: torch.Tensor) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    calibrate_random_weights(model, images)
    torch.testing.assert_close(model(images), images.mean((2, 3)))
