"""The factories of models by name: `timm:…`, `torchvision:…`, `hf:…` and saved programs. Nothing is downloaded."""

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models import zoo
from qnnsweep.tasks.models.hugging_face import hf_model
from qnnsweep.tasks.models.photographs import pictures
from qnnsweep.tasks.models.preparation import (
    Preparation,
    import_timm,
    of_timm,
    of_torchvision,
    read_program,
    require_torchvision,
    timm_data,
    torchvision_transform,
)
from qnnsweep.tasks.models.reproducible import reproducible

__all__ = ["hf_model", "saved_program", "timm_model", "torchvision_model"]

SEED = 0


def timm_model(*, architecture: str, size: int | None = None, **options: Any) -> nn.Module:
    """Return a model of timm in eval mode, with its pretrained weights if they are on this machine, else random ones.

    `size`: the side of a picture, if it is not that of timm's data configuration. `options`: those of
    `timm.create_model`. Its input is float32 [N, 3, size, size]. Raises RequestError if there is no such model.
    """
    timm_data(architecture, size, options)  # the error about an unknown name
    timm = import_timm(architecture)
    card = timm.get_pretrained_cfg(architecture)
    if size is not None and (card.fixed_input_size or "vit" in architecture):
        options |= {"img_size": size}
    pretrained = zoo.timm_weights(architecture)
    preparation = of_timm(architecture, size, **options)
    with reproducible(SEED):
        model = timm.create_model(architecture, pretrained=False, **options)
        return zoo.with_weights(model, pretrained, lambda: random_weights_samples(preparation))


def torchvision_model(*, architecture: str, size: int | None = None, **options: Any) -> nn.Module:
    """Return a model of torchvision in eval mode; see `timm_model`. `options`: those of `torchvision.models.get_model`.

    Its input is float32 [N, 3, size, size] for models of classification and segmentation.
    """
    torchvision_transform(architecture)  # the error about an unknown name
    models = require_torchvision(architecture).models
    if size is not None and architecture.startswith("vit_"):
        options |= {"image_size": size}
    if "weights_backbone" in inspect.signature(models.get_model_builder(architecture)).parameters:
        options = {"weights_backbone": None} | options  # it would be downloaded
    preparation = of_torchvision(architecture, size)
    pretrained = zoo.torchvision_weights(architecture)
    options = {**zoo.auxiliary_options(architecture, pretrained), **options}
    with reproducible(SEED):
        model = models.get_model(architecture, weights=None, **options)
        return zoo.with_weights(model, pretrained, lambda: random_weights_samples(preparation))


def saved_program(*, file: str) -> torch.export.ExportedProgram | nn.Module:
    """Return the program that `torch.export.save` wrote to a file. Raises RequestError if it cannot be read.

    A program that takes inputs by name is returned as a module that takes them by position too.
    """
    program = read_program(file)
    _, by_name = program.example_inputs or ((), {})
    return _by_position(program, [*by_name]) if by_name else program


def _by_position(program: torch.export.ExportedProgram, by_name: Sequence[str]) -> nn.Module:
    inner = program.module()
    names = [*inspect.signature(inner.forward).parameters]
    positional = len(names) - len(by_name)

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = inner

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.program(*inputs[:positional], **dict(zip(names[positional:], inputs[positional:], strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *names)]
    Program.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return Program()


def random_weights_samples(preparation: Preparation) -> torch.Tensor | None:
    """Return samples that set the statistics of random weights: photographs, or noise; None if there are none.

    The tensor is float32 [N, …], with N ≥ 2.
    """
    if preparation.picture is not None:
        shown = itertools.islice(pictures("calibration"), zoo.CALIBRATION_PHOTOGRAPHS)
        found = [preparation.picture(picture) for _, picture in shown]
    elif preparation.random is not None:
        generator = torch.Generator().manual_seed(SEED)
        found = [preparation.random(generator) for _ in range(zoo.CALIBRATION_PHOTOGRAPHS)]
    else:
        return None
    tensors = [inputs for inputs in found if isinstance(inputs, torch.Tensor)]
    return torch.cat(tensors) if tensors else None
