"""The photographs: their names, and that they are the same tensors in every call."""

from __future__ import annotations

import pytest
import torch

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.photographs import SPLITS, photographs
from qnnsweep.tasks.models.sample import Sample


def views(count: int, split: str = "evaluation", **changes: object) -> list[Sample]:
    settings = {"size": 32, "mean": [127.0] * 3, "std": [128.0] * 3} | changes
    return photographs(count, split=split, **settings)  # pyright: ignore[reportArgumentType]


def test_the_centre_of_every_photograph_comes_first_and_crops_follow_without_end() -> None:
    assert [sample.get("name") for sample in views(12)] == [
        "flower",
        "china",
        "coffee",
        "chelsea",
        "motorcycle_left",
        "flower crop 1",
        "china crop 1",
        "coffee crop 1",
        "chelsea crop 1",
        "motorcycle_left crop 1",
        "flower crop 2",
        "china crop 2",
    ]


def test_the_splits_share_no_photograph() -> None:
    assert not set(SPLITS["calibration"]) & set(SPLITS["evaluation"])


def test_a_view_is_one_normalised_rgb_picture() -> None:
    picture = views(1)[0]["inputs"]["x"]
    assert (picture.shape, picture.dtype, picture.is_contiguous()) == ((1, 3, 32, 32), torch.float32, True)
    pixels = picture * 128 + 127
    assert torch.equal(pixels, pixels.round())
    assert (float(pixels.min()) >= 0, float(pixels.max()) <= 255) == (True, True)


def test_every_channel_has_its_own_mean_and_deviation() -> None:
    plain = views(1, mean=[0.0] * 3, std=[1.0] * 3)[0]["inputs"]["x"]
    normalised = views(1, mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0], input_name="image")[0]["inputs"]["image"]
    expected = [(plain[:, channel] - channel - 1) / (channel + 4) for channel in range(3)]
    assert torch.equal(normalised, torch.stack(expected, dim=1))


def test_two_calls_return_equal_tensors_and_a_longer_list_begins_with_the_shorter() -> None:
    shorter, longer = views(10, "calibration"), views(20, "calibration")
    pairs = zip(shorter, longer, strict=False)
    assert all(torch.equal(first["inputs"]["x"], second["inputs"]["x"]) for first, second in pairs)


def test_no_two_views_are_equal() -> None:
    pictures = [sample["inputs"]["x"].numpy().tobytes() for sample in views(16, "calibration")]
    assert len(set(pictures)) == 16


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"^split=test: it must be one of calibration, evaluation$"):
        views(1, "test")
