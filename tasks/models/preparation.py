"""What becomes of pictures and texts before a model gets them, and random inputs, as the model's configuration says."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils import _pytree as pytree

from qnnsweep.conf.errors import did_you_mean, printable
from qnnsweep.tasks.errors import RequestError, first_line, raise_shortage
from qnnsweep.tasks.models import program_file
from qnnsweep.tasks.models.optional import extra_package, missing_extra
from qnnsweep.tasks.models.torchvision_import import torchvision

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SIDE, _CROP = 224, 0.875

Inputs = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """The functions that make the inputs of one model."""

    picture: Callable[[Image.Image], Inputs] | None = None
    """Returns the inputs for an RGB picture; None if the model takes none."""
    picture_words: str = ""
    """How pictures are prepared, for the user."""
    text: Callable[[str], Inputs] | None = None
    """Returns the inputs for a line of text; None if the model takes none."""
    no_text: str = "it takes no text"
    """Why `text` is None."""
    random: Callable[[torch.Generator], Inputs] | None = None
    """Returns random inputs; None if the shapes of the inputs are not known."""


def of_timm(architecture: str, size: int | None = None, **options: Any) -> Preparation:
    """Return the preparation that timm's data configuration of the model says. `size`: another side of the square."""
    config = timm_data(architecture, size, options)
    transform = import_timm(architecture).data.create_transform(**config, is_training=False)
    channels, *plane = config["input_size"]
    mean, std = config["mean"], config["std"]
    return Preparation(
        picture=(lambda picture: transform(picture).unsqueeze(0)) if channels == len(mean) == 3 else None,
        picture_words=f"resized to {_sides(plane)} and normalised as timm says",
        random=lambda generator: normalised_noise(generator, (channels, *plane), mean, std),
    )


def timm_data(architecture: str, size: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return timm's data configuration of a model. Raises RequestError if timm is missing or has no such model."""
    timm = import_timm(architecture)
    names = timm.list_models()
    if architecture.partition(".")[0] not in names:
        problem = f"no such model in timm; {did_you_mean(architecture, names)}timm.list_models() has all"
        raise RequestError(problem, key="model", value=f"timm:{architecture}")
    asked = {"in_chans": options["in_chans"]} if "in_chans" in options else {}
    if size is not None:
        asked["img_size"] = size
    return timm.data.resolve_data_config(asked, pretrained_cfg=timm.get_pretrained_cfg(architecture).to_dict())


def import_timm(architecture: str) -> Any:
    """Import and return timm. Raises RequestError that says what to install if it is missing."""
    require_torchvision(architecture)  # timm imports torchvision
    return extra_package("timm", architecture)


def require_torchvision(architecture: str) -> Any:
    """Import and return torchvision. Raises RequestError that says what to install if it is missing."""
    package = torchvision()
    if package is None:
        raise missing_extra(architecture, "zoo", "torchvision is not installed")
    return package


def of_torchvision(architecture: str, size: int | None = None, **_: Any) -> Preparation:
    """Return the preparation that the transforms of torchvision's default weights say.

    `size`: another side of the square. A picture for a model of segmentation is cropped to a square.
    """
    transform = torchvision_transform(architecture)
    from torchvision.transforms import _presets

    presets: Any = _presets  # its classes have attributes that can be None
    if isinstance(transform, presets.ImageClassification):
        crop = transform.crop_size[0]
        side = size or crop
        resized = round(transform.resize_size[0] * side / crop)
        words = f"resized to {side} and normalised as the weights of torchvision say"
    elif isinstance(transform, presets.SemanticSegmentation):
        side = resized = size or transform.resize_size[0]
        words = f"cropped to {side} and normalised as the weights of torchvision say"
    elif isinstance(transform, presets.VideoClassification):
        side, frames = size or transform.crop_size[0], 16
        return Preparation(
            random=lambda generator: normalised_noise(generator, (3, frames, side, side), transform.mean, transform.std)
        )
    else:
        return Preparation()
    mode = Image.Resampling[transform.interpolation.name]
    return Preparation(
        picture=lambda picture: normalised(cropped(picture, resized, side, mode), transform.mean, transform.std),
        picture_words=words,
        random=lambda generator: normalised_noise(generator, (3, side, side), transform.mean, transform.std),
    )


def torchvision_transform(architecture: str) -> Any:
    """Return the transforms of a model's default weights. Raises RequestError if torchvision has no such model."""
    models = require_torchvision(architecture).models
    names = [name for name in models.list_models() if not name.startswith("quantized_")]
    if architecture not in names:
        problem = f"no such model in torchvision; {did_you_mean(architecture, names)}torchvision.models.list_models()"
        raise RequestError(f"{problem} has all", key="model", value=f"torchvision:{architecture}")
    return models.get_model_weights(architecture).DEFAULT.transforms()


def read_program(file: str) -> torch.export.ExportedProgram:
    """Return the program that `torch.export.save` wrote to a file. Raises RequestError if it cannot be read."""
    try:
        return program_file.program(file)
    except Exception as error:  # PyTorch raises anything
        raise_shortage(error)
        raise RequestError(
            f"not a program of torch.export that this PyTorch can read ({printable(first_line(error))}); save it with "
            "torch.export.save(torch.export.export(module, inputs), file)",
            key="model",
            value=printable(file),
        ) from error


def of_program(program: torch.export.ExportedProgram) -> Preparation:
    """Return the preparation for a saved program. Random inputs are distributed like its example inputs."""
    if program.example_inputs is None:
        return Preparation()
    args, kwargs = program.example_inputs
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    shapes = [(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")) for leaf in leaves]
    names = [*inspect.signature(program.module().forward).parameters] if kwargs else []

    def random(generator: torch.Generator) -> Any:
        drawn, named = pytree.tree_map_only(torch.Tensor, lambda tensor: like(tensor, generator), (args, kwargs))
        return {**dict(zip(names, drawn, strict=False)), **named} if kwargs else tuple(drawn)

    return replace(of_inputs(shapes), random=random)


def of_inputs(inputs: Sequence[tuple[Sequence[int], str]]) -> Preparation:
    """Return the preparation for inputs of which only shapes and dtypes are known, in order. There may be none.

    A picture is resized and cropped to the one float32 input [1, 3, height, width], by default to 224×224, and
    normalised as for ImageNet. Random numbers are normally distributed; random integers are 0 or 1.
    """

    def random(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return tuple(_drawn(shape, getattr(torch, dtype), generator) for shape, dtype in inputs)

    height = width = _SIDE
    takes_picture = not inputs
    if len(inputs) == 1:
        shape, dtype = inputs[0]
        if takes_picture := (dtype == "float32" and len(shape) == 4 and tuple(shape[:2]) == (1, 3)):
            height, width = shape[2:]
    return Preparation(
        picture=(lambda picture: as_for_imagenet(picture, (height, width))) if takes_picture else None,
        picture_words=f"resized to {_sides((height, width))} and normalised as for ImageNet, because the model does "
        "not say how",
        random=random if inputs else None,
    )


def like(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random numbers with the shape, the dtype and the mean and the deviation, or the range, of an example."""
    if example.is_floating_point():
        values = example.double()
        mean, deviation = values.mean(), values.std(correction=0)
        usable = bool(mean.isfinite()) and bool(deviation.isfinite()) and bool(deviation > 0)
        noise = torch.randn(example.shape, generator=generator, dtype=torch.float64)
        return (noise * deviation + mean if usable else noise).to(example.dtype)
    if example.dtype == torch.bool or not example.numel():
        return example.clone()
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, example.shape, generator=generator).to(example.dtype)


def _drawn(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)


def normalised_noise(
    generator: torch.Generator, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """Return pixels of uniform noise, float32 [1, *shape], normalised per channel, the first axis of `shape`."""
    noise = torch.rand((1, *shape), generator=generator)
    if len(mean) != shape[0]:
        mean, std = [sum(mean) / len(mean)] * shape[0], [sum(std) / len(std)] * shape[0]
    per_channel = (1, shape[0], *[1] * (len(shape) - 1))
    return (noise - torch.tensor(mean).view(per_channel)) / torch.tensor(std).view(per_channel)


def as_for_imagenet(picture: Image.Image, plane: tuple[int, int]) -> torch.Tensor:
    """Return the centre of a picture as float32 [1, 3, height, width], resized and normalised as for ImageNet."""
    height, width = plane
    square = max(plane)
    whole = cropped(picture, round(square / _CROP), square, Image.Resampling.BILINEAR)
    left, top = (square - width) // 2, (square - height) // 2
    return normalised(whole.crop((left, top, left + width, top + height)), IMAGENET_MEAN, IMAGENET_STD)


def cropped(picture: Image.Image, resized: int, side: int, mode: Image.Resampling) -> Image.Image:
    """Return the square at the centre of a picture, whose shorter side is first resized to `resized` pixels."""
    scale = resized / min(picture.size)
    whole = picture.resize((round(picture.width * scale), round(picture.height * scale)), mode)
    left, top = (whole.width - side) // 2, (whole.height - side) // 2
    return whole.crop((left, top, left + side, top + side))


def normalised(picture: Image.Image, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return an RGB picture as float32 [1, 3, height, width]: pixels from 0 to 1, normalised per channel."""
    pixels = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255).permute(2, 0, 1)
    image = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    return image.unsqueeze(0).contiguous()


def _sides(plane: Sequence[int]) -> str:
    return str(plane[0]) if plane[0] == plane[1] else "×".join(map(str, plane))
