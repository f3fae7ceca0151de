"""Photographs from the wheels of scikit-learn and scikit-image, cropped and normalised for image classifiers.

They have no labels, because few show exactly one ImageNet class. (The flower is a dahlia, for which ImageNet has
no class; classifiers predict a daisy.)
"""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import islice

import numpy as np
import torch
from PIL import Image

from qnnsweep.tasks.models.sample import Sample, part

SKLEARN, SKIMAGE = "sklearn.datasets.images", "skimage.data"
SPLITS = {
    "calibration": (
        # The photograph with the widest range is first, because a moving average changes the first range only a little.
        (SKIMAGE, "camera.png"),
        (SKIMAGE, "astronaut.png"),
        (SKIMAGE, "rocket.jpg"),
        (SKIMAGE, "coins.png"),
        (SKIMAGE, "brick.png"),
        (SKIMAGE, "grass.png"),
        (SKIMAGE, "hubble_deep_field.jpg"),
        (SKIMAGE, "ihc.png"),
    ),
    "evaluation": (
        (SKLEARN, "flower.jpg"),
        (SKLEARN, "china.jpg"),
        (SKIMAGE, "coffee.png"),
        (SKIMAGE, "chelsea.png"),
        (SKIMAGE, "motorcycle_left.png"),
    ),
}
"""Per split, the package and the file of every photograph. The two splits show different scenes."""


def photographs(
    count: int,
    *,
    split: str,
    size: int,
    mean: list[float],
    std: list[float],
    crop_fraction: float = 0.875,
    resampling: str = "bicubic",
    input_name: str = "x",
) -> list[Sample]:
    """Return `count` views of the photographs of a split (`calibration`, `evaluation`).

    The centre crops of all photographs are first. Rounds of random crops follow, of which half are mirrored. The
    random crops are the same in every call.
    A sample has the input `input_name`, float32 [1, 3, size, size]: RGB, resized so that `size` is `crop_fraction` of
    the shorter side, cropped, and normalised to (pixel - mean) / std. `mean` and `std` are per channel, on the 0..255
    scale.
    Raises RequestError for an unknown split.
    """
    normalise = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    filter_ = Image.Resampling[resampling.upper()]

    def samples() -> Iterator[Sample]:
        for name, picture in _views(part(SPLITS, split), round(size / crop_fraction), size, filter_):
            pixels = torch.from_numpy(np.asarray(picture, dtype=np.float32)).permute(2, 0, 1)
            image = (pixels - normalise[0]) / normalise[1]
            yield {"inputs": {input_name: image.unsqueeze(0).contiguous()}, "name": name}

    return list(islice(samples(), count))


def pictures(split: str) -> Iterator[tuple[str, Image.Image]]:
    """Yield the name and the RGB picture of every photograph of a split. Raises RequestError for an unknown split."""
    for package, file in part(SPLITS, split):
        yield file.rpartition(".")[0], _load(package, file)


def _views(
    sources: Sequence[tuple[str, str]], side: int, size: int, resampling: Image.Resampling
) -> Iterator[tuple[str, Image.Image]]:
    """Yield names and square RGB pictures, endlessly. `side`: a photograph's shorter side after resizing, in pixels."""
    for package, file in sources:
        yield file.rpartition(".")[0], _centre(_resized(_load(package, file), side, resampling), size)
    # NumPy guarantees that RandomState's random numbers never change; default_rng's numbers may change.
    draw = np.random.RandomState(0)
    round_ = 0
    while True:
        round_ += 1
        for package, file in sources:
            zoomed = _resized(_load(package, file), round(side * draw.uniform(1.0, 1.6)), resampling)
            left, top = draw.randint(zoomed.width - size + 1), draw.randint(zoomed.height - size + 1)
            picture = zoomed.crop((left, top, left + size, top + size))
            if draw.randint(2):
                picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            yield f"{file.rpartition('.')[0]} crop {round_}", picture


def _load(package: str, file: str) -> Image.Image:
    with (files(package) / file).open("rb") as stream:
        return Image.open(stream).convert("RGB")


def _resized(picture: Image.Image, side: int, resampling: Image.Resampling) -> Image.Image:
    scale = side / min(picture.size)
    return picture.resize((round(picture.width * scale), round(picture.height * scale)), resampling)


def _centre(picture: Image.Image, size: int) -> Image.Image:
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    return picture.crop((left, top, left + size, top + size))
