"""Classifiers of torchvision and timm, pretrained if the weights are in the local cache, else with random weights.

Nothing is downloaded. The files are in the cache if torchvision or timm has been used on this machine.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import torch
from safetensors.torch import load_file
from torch import nn

from tasks.errors import RequestError
from tasks.models.photographs import photographs
from tasks.models.random_weights import calibrate_random_weights
from tasks.models.reproducible import reproducible
from tasks.models.torchvision_import import torchvision

SEED = 0
CALIBRATION_PHOTOGRAPHS = 4


def torchvision_classifier(architecture: str, *, size: int, mean: list[float], std: list[float]) -> nn.Module:
    """Return `torchvision.models.<architecture>` in eval mode.

    Its input is float32 [N, 3, size, size], and its output is float32 [N, 1000]. `size`, `mean`, `std`: the arguments
    with which `photographs` creates the model's samples. A few photographs are used to calibrate random weights. Raises
    RequestError if torchvision is not installed.
    """
    models = _torchvision(architecture).models
    weights = models.get_model_weights(architecture).DEFAULT
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(weights.url).path).name)
    pretrained = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else None
    # The pretrained Inception has an auxiliary head, for training only, and normalises its input again.
    inception: dict[str, Any] = {"transform_input": pretrained is not None, "init_weights": True}
    with reproducible(SEED):
        model = models.get_model(architecture, weights=None, **(inception if architecture == "inception_v3" else {}))
        return _with_weights(model, pretrained, size, mean, std)


def timm_classifier(architecture: str, *, size: int, mean: list[float], std: list[float]) -> nn.Module:
    """Return timm's `architecture` with its default weights in eval mode; see `torchvision_classifier`."""
    _torchvision(architecture)  # timm imports torchvision
    timm = _optional("timm", architecture)
    hub = importlib.import_module("huggingface_hub")
    repository = timm.get_pretrained_cfg(architecture).hf_hub_id
    file = hub.try_to_load_from_cache(repository, "model.safetensors")
    pretrained = load_file(file) if isinstance(file, str) else None
    with reproducible(SEED):
        model = timm.create_model(architecture, pretrained=False)
        return _with_weights(model, pretrained, size, mean, std)


def _with_weights(
    model: nn.Module, pretrained: dict[str, torch.Tensor] | None, size: int, mean: list[float], std: list[float]
) -> nn.Module:
    if pretrained is None:
        samples = photographs(CALIBRATION_PHOTOGRAPHS, split="calibration", size=size, mean=mean, std=std)
        calibrate_random_weights(model, torch.cat([sample["inputs"]["x"] for sample in samples]))
    else:
        model.load_state_dict(pretrained)
    if getattr(model, "AuxLogits", None) is not None:
        model.aux_logits, model.AuxLogits = False, None  # pyright: ignore[reportArgumentType]
    model.weights_origin = "random" if pretrained is None else "pretrained"  # pyright: ignore[reportArgumentType]
    return model.eval().requires_grad_(False)


def _torchvision(architecture: str) -> ModuleType:
    return torchvision() or _optional("torchvision", architecture)


def _optional(package: str, model: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise RequestError(
            f"model {model} needs the optional extra zoo ({package}: {error}): pip install 'qnnsweep[zoo]'"
        ) from error
