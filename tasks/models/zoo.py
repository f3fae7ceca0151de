"""Classifiers of torchvision and timm, pretrained if the weights are in the local cache, else with random weights.

Nothing is downloaded. The files are in the cache if torchvision or timm has been used on this machine.
"""

import importlib
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import torch
from safetensors.torch import load_file
from torch import nn

from qnnsweep.conf.errors import did_you_mean, printable
from qnnsweep.tasks.errors import RequestError, raise_shortage
from qnnsweep.tasks.models.optional import extra_package
from qnnsweep.tasks.models.photographs import photographs
from qnnsweep.tasks.models.random_weights import calibrate_random_weights
from qnnsweep.tasks.models.reproducible import reproducible
from qnnsweep.tasks.models.torchvision_import import torchvision

SEED = 0
CALIBRATION_PHOTOGRAPHS = 4
_AUXILIARY = ("googlenet", "inception_v3")


def torchvision_classifier(architecture: str, *, size: int, mean: list[float], std: list[float]) -> nn.Module:
    """Return `torchvision.models.<architecture>` in eval mode.

    Its input is float32 [N, 3, size, size], and its output is float32 [N, 1000]. `size`, `mean`, `std`: the arguments
    with which `photographs` creates the model's samples. A few photographs are used to calibrate random weights. Raises
    RequestError if torchvision is not installed or has no such classifier.
    """
    models = _torchvision(architecture).models
    _check(architecture, models.list_models(module=models), "torchvision.models")
    pretrained = torchvision_weights(architecture)
    with reproducible(SEED):
        model = models.get_model(architecture, weights=None, **auxiliary_options(architecture, pretrained))
        return with_weights(model, pretrained, lambda: _photographs(size, mean, std))


def timm_classifier(architecture: str, *, size: int, mean: list[float], std: list[float]) -> nn.Module:
    """Return timm's `architecture` with its default weights in eval mode; see `torchvision_classifier`."""
    _torchvision(architecture)  # timm imports torchvision
    timm = extra_package("timm", architecture)
    _check(architecture.partition(".")[0], timm.list_models(), "timm")
    pretrained = timm_weights(architecture)
    with reproducible(SEED):
        model = timm.create_model(architecture, pretrained=False)
        return with_weights(model, pretrained, lambda: _photographs(size, mean, std))


def torchvision_weights(architecture: str) -> dict[str, torch.Tensor] | None:
    """Return the default weights of a model of torchvision from the cache of torch.hub; None if it lacks them."""
    weights = _torchvision(architecture).models.get_model_weights(architecture).DEFAULT
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(weights.url).path).name)
    return torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else None


def timm_weights(architecture: str) -> dict[str, torch.Tensor] | None:
    """Return the default weights of a model of timm from the cache of Hugging Face; None if it lacks them."""
    repository = extra_package("timm", architecture).get_pretrained_cfg(architecture).hf_hub_id
    hub = importlib.import_module("huggingface_hub")
    file = hub.try_to_load_from_cache(repository, "model.safetensors") if repository else None
    return load_file(file) if isinstance(file, str) else None


def auxiliary_options(architecture: str, pretrained: object) -> dict[str, Any]:
    """Return the options of the models of torchvision that have auxiliary heads.

    With pretrained weights they have these heads, for training only, and normalise their input again.
    """
    if architecture not in _AUXILIARY:
        return {}
    return {"transform_input": pretrained is not None, "init_weights": True}


def with_weights(
    model: nn.Module, pretrained: dict[str, torch.Tensor] | None, images: Callable[[], torch.Tensor | None]
) -> nn.Module:
    """Return the model with pretrained weights, or with random ones whose statistics are those of `images`.

    The auxiliary heads are removed. Raises RequestError if the weights do not fit the model.
    """
    if pretrained is not None:
        try:
            model.load_state_dict(pretrained)
        except RuntimeError as error:
            raise_shortage(error)
            lines = [line.strip() for line in str(error).splitlines()]
            problem = f"the pretrained weights do not fit a model with these arguments ({printable(lines[-1])})"
            raise RequestError(problem, key="model.arguments") from error
    elif (samples := images()) is not None:
        calibrate_random_weights(model, samples)
    for name in ("AuxLogits", "aux1", "aux2"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
            model.aux_logits = False  # pyright: ignore[reportArgumentType]
    model.weights_origin = "random" if pretrained is None else "pretrained"  # pyright: ignore[reportArgumentType]
    return model.eval().requires_grad_(False)


def _photographs(size: int, mean: list[float], std: list[float]) -> torch.Tensor:
    samples = photographs(CALIBRATION_PHOTOGRAPHS, split="calibration", size=size, mean=mean, std=std)
    return torch.cat([sample["inputs"]["x"] for sample in samples])


def _check(architecture: str, known: Collection[str], package: str) -> None:
    if architecture not in known:
        problem = f"no such classifier in {package}; {did_you_mean(architecture, known)}{package}.list_models() has all"
        raise RequestError(problem, key="model.arguments.architecture", value=architecture)


def _torchvision(architecture: str) -> ModuleType:
    return torchvision() or extra_package("torchvision", architecture)
