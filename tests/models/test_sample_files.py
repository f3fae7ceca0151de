"""Samples come from files as they are, divided between the evaluation and the calibration, and say where from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.named_samples import samples
from qnnsweep.tasks.models.sample_files import divided

COUNTS = {"evaluation": 2, "calibration": 3}
CODE = """
import torch

def plain(count):
    for number in range(count):
        yield torch.full((1, 2), number)

def labelled():
    return [{"inputs": (torch.zeros(1), torch.ones(1)), "label": 4, "name": "first"}]

def by_split(count, split):
    return [{"inputs": {"x": torch.tensor([count])}, "name": split}] * 9

def fails(count):
    raise ValueError("no data today")

nothing = 3
"""


def taken(place: Path | str, split: str = "evaluation", counts: Mapping[str, int] | None = COUNTS, **how: Any) -> Any:
    return list(samples(COUNTS[split], split=split, samples=str(place), counts=counts, **how))


def names(found: list[dict[str, Any]]) -> list[str]:
    return [sample["name"] for sample in found]


def refused(place: Path | str, **how: Any) -> str:
    with pytest.raises(RequestError) as caught:
        taken(place, **how)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_an_array_has_the_samples_along_its_first_axis(tmp_path: Path) -> None:
    array = np.arange(20, dtype=np.float64).reshape(10, 2)
    np.save(tmp_path / "x.npy", array)
    evaluation, calibration = (taken(tmp_path / "x.npy", split) for split in COUNTS)
    assert names(evaluation) == ["sample 2", "sample 7"]
    assert names(calibration) == ["sample 1", "sample 5", "sample 8"]
    torch.testing.assert_close(evaluation[0]["inputs"], torch.tensor([[4.0, 5.0]]), rtol=0, atol=0)
    assert {sample["origin"] for sample in evaluation + calibration} == {"x.npy: 2 of 10 evaluated, 3 others calibrate"}
    assert names(taken(tmp_path / "x.npy", counts=None)) == ["sample 0", "sample 1"]


def test_a_certificate_gets_samples_that_neither_split_has(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10, 2)))
    place, module = str(tmp_path / "x.npy"), tmp_path / "yields.py"
    more = list(samples(COUNTS["evaluation"] + 3, split="evaluation", samples=place, counts=COUNTS))
    assert names(more) == ["sample 2", "sample 7", "sample 0", "sample 4", "sample 9"]
    assert {sample["origin"] for sample in more} == {"x.npy: 2 of 10 evaluated, 3 others calibrate"}
    every = list(samples(99, split="evaluation", samples=place, counts=COUNTS))
    assert sorted(names(every) + names(taken(place, "calibration"))) == [f"sample {number}" for number in range(10)]
    module.write_text("def every():\n    yield from range(100)\ndef of(split):\n    yield from range(100)\n")
    further = list(samples(COUNTS["evaluation"] + 3, split="evaluation", samples=f"{module}:every", counts=COUNTS))
    assert [sample["inputs"] for sample in further] == [1, 3, 5, 6, 7]
    assert [sample["inputs"] for sample in taken(f"{module}:every", "calibration")] == [0, 2, 4]
    of_split = list(samples(COUNTS["evaluation"] + 3, split="evaluation", samples=f"{module}:of", counts=COUNTS))
    assert [sample["inputs"] for sample in of_split] == [0, 1, 2, 3, 4]


def test_named_arrays_are_the_inputs_by_name_with_labels(tmp_path: Path) -> None:
    arrays = {"ids": np.arange(6).reshape(6, 1), "mask": np.ones((6, 3), bool), "label": np.arange(6) * 10}
    np.savez(tmp_path / "both.npz", **arrays)
    save_file(arrays, tmp_path / "both.safetensors")
    for file in ("both.npz", "both.safetensors"):
        (first, _) = taken(tmp_path / file)
        assert {name: (value.dtype, list(value.shape)) for name, value in first["inputs"].items()} == {
            "ids": (torch.int64, [1, 1]),
            "mask": (torch.bool, [1, 3]),
        }
        assert (first["name"], first["label"], int(first["inputs"]["ids"])) == ("sample 1", 10, 1)


def test_an_array_per_sample_and_input_is_a_whole_input(tmp_path: Path) -> None:
    arrays = {f"{number}/{name}": np.full((1, 2), number) for number in (10, 2, 1) for name in ("x", "y")}
    arrays["2/label"] = np.array(7)
    np.savez(tmp_path / "each.npz", **arrays)
    found = taken(tmp_path / "each.npz", counts=None)
    assert (names(found), [sample["label"] for sample in found]) == (["1", "2"], [None, 7])
    assert [sorted(sample["inputs"]) for sample in found] == [["x", "y"]] * 2
    assert int(found[1]["inputs"]["y"][0, 0]) == 2


def test_arrays_without_names_are_inputs_in_their_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", *(np.full((5, 1), number) for number in range(11)))
    (first, _) = taken(tmp_path / "two.npz")
    assert [int(tensor) for tensor in first["inputs"]] == list(range(11))
    configured = [[f"i{number}", [1, 1], "int64"] for number in range(11)]
    named = taken(tmp_path / "two.npz", inputs=configured)[0]["inputs"]
    assert {name: int(tensor) for name, tensor in named.items()} == {f"i{number}": number for number in range(11)}


def picture(file: Path, colour: int = 128, size: tuple[int, int] = (60, 40)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, colour, colour)).save(file)


def test_folders_of_a_folder_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    for name in ("dogs/b.png", "dogs/a.jpg", "cats/deep/c.bmp", "birds/d.webp", ".hidden/e.png"):
        picture(tmp_path / "set" / name)
    (tmp_path / "set" / "dogs" / "notes.txt").write_text("no picture")
    found = taken(tmp_path / "set", "calibration", counts=None) + taken(tmp_path / "set", counts=None)
    labels = {sample["name"]: sample["label"] for sample in found}
    assert labels == {"birds/d.webp": 0, "cats/deep/c.bmp": 1, "dogs/a.jpg": 2}
    assert {tuple(sample["inputs"].shape) for sample in found} == {(1, 3, 224, 224)}
    words = "resized to 224 and normalised as for ImageNet, because the model does not say how"
    assert {sample["origin"] for sample in found} == {f"images of set, {words}"}


def test_a_picture_has_the_size_of_the_only_input_and_is_normalised(tmp_path: Path) -> None:
    picture(tmp_path / "grey.png", 255)
    (only,) = taken(tmp_path / "grey.png", inputs=[["image", [1, 3, 20, 32], "float32"]])
    white = (torch.ones(3) - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(only["inputs"]["image"], white.view(1, 3, 1, 1).expand(1, 3, 20, 32))
    assert only["origin"].endswith(": 1 of 1 evaluated, the same one calibrates")


def test_a_function_yields_inputs_or_samples(tmp_path: Path) -> None:
    file = tmp_path / "given.py"
    file.write_text(CODE)
    assert [sample["inputs"].tolist() for sample in taken(f"{file}:plain")] == [[[1, 1]], [[3, 3]]]
    (labelled,) = taken(f"{file}:labelled")
    assert (labelled["name"], labelled["label"], len(labelled["inputs"])) == ("first", 4, 2)
    by_split = taken(f"{file}:by_split", "calibration")
    assert (names(by_split), int(by_split[0]["inputs"]["x"])) == (["calibration"] * 3, 3)
    assert by_split[0]["origin"] == "those of given.py:by_split"


def test_random_samples_say_so_and_are_the_same_every_time() -> None:
    inputs = [["x", [1, 3], "float32"], ["ids", [1, 4], "int64"]]
    calls = [list(samples(2, split=split, inputs=inputs)) for split in ("evaluation", "evaluation", "calibration")]
    tensors = [[sample["inputs"]["x"] for sample in call] for call in calls]
    assert [call[0]["origin"] for call in calls] == [f"random numbers of seed {seed}" for seed in (0, 0, 1)]
    assert all(map(torch.equal, tensors[0], tensors[1]))
    assert not torch.equal(tensors[0][0], tensors[2][0])
    assert set(calls[0][0]["inputs"]["ids"].flatten().tolist()) <= {0, 1}


def wrong_files(folder: Path) -> Iterator[tuple[Path | str, str]]:
    (folder / "empty").mkdir()
    endings = ".bmp, .gif, .jpeg, .jpg, .png, .ppm, .tif, .tiff, .webp"
    yield folder / "empty", f"no image in it; the endings of images are {endings}"
    yield folder / "none.npy", "not a readable .npy file: "
    np.save(folder / "one.npy", np.array(3))
    yield folder / "one.npy", "not a readable .npy file: one number; the first axis must be that of the samples"
    np.save(folder / "objects.npy", np.array([{}]))
    yield folder / "objects.npy", "not a readable .npy file: no arrays of numbers in it"
    np.savez(folder / "uneven.npz", x=np.zeros((3, 1)), y=np.zeros((4, 1)))
    uneven = "the first axis of all arrays is that of the samples, but x has 3, y has 4"
    yield folder / "uneven.npz", f"not a readable .npz file: {uneven}"
    np.savez(folder / "mixed.npz", **{"0/x": np.zeros(1), "y": np.zeros(1)})
    mixed = "y is not of the form <sample>/<input>, as other arrays of the file are"
    yield folder / "mixed.npz", f"not a readable .npz file: {mixed}"
    for name, ending in (("broken.safetensors", ".safetensors"), ("broken.npz", ".npz")):
        (folder / name).write_bytes(b"\x10\0\0\0\0\0\0\0no header at all")
        yield folder / name, f"not a readable {ending} file: "
    (folder / "broken.png").write_bytes(b"no picture")
    yield folder / "broken.png", "not a readable image: "
    (folder / "lines.txt").write_text("\n \n")
    yield folder / "lines.txt", "empty"
    (folder / "data.csv").write_text("1,2")
    yield folder / "data.csv", "a file of an unknown kind; it must be a folder of images, .npy, .npz, .safetensors, "
    (folder / "given.py").write_text(CODE)
    yield f"{folder}/given.py:fails", "ValueError: no data today"
    yield f"{folder}/given.py:nothing", "a int, not a function"
    yield f"{folder}/given.py:absent", "cannot be imported: AttributeError: module 'given' has no attribute 'absent'"


def test_a_wrong_place_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    for place, problem in wrong_files(tmp_path):
        assert refused(place).startswith(f"samples={place}: {problem}"), place


def test_a_kind_of_samples_that_the_model_cannot_take_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a line")
    inputs = [["x", [1, 7], "float32"]]
    assert refused(tmp_path / "a.png", inputs=inputs).endswith(": the model does not take one image as its input")
    assert refused(tmp_path / "a.txt", inputs=inputs).endswith(
        ": the model cannot take lines of text: it takes no text"
    )


@pytest.mark.parametrize("ending", [".npy", ".npz", ".safetensors"])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path, ending: str) -> None:
    arrays = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "label": np.arange(6)}
    whole = tmp_path / f"whole{ending}"
    saves: Mapping[str, Any] = {
        ".npy": lambda: np.save(whole, arrays["x"]),
        ".npz": lambda: np.savez_compressed(whole, **arrays),
        ".safetensors": lambda: save_file(arrays, whole),
    }
    saves[ending]()
    draw, contents = np.random.RandomState(0), whole.read_bytes()
    refusals = 0
    for number in range(200):
        damaged = bytearray(contents[: draw.randint(len(contents)) + 1] if number % 4 == 0 else contents)
        for position in draw.randint(len(damaged), size=draw.randint(1, 4)):
            damaged[position] = draw.randint(256)
        file = tmp_path / f"damaged{ending}"
        file.write_bytes(bytes(damaged))
        try:
            taken(file)
        except RequestError as error:
            refusals += str(error).startswith(f"samples={file}: ")
    assert refusals > 50


@given(available=st.integers(1, 200), evaluation=st.integers(1, 40), calibration=st.integers(1, 40))
def test_no_sample_is_used_twice_and_all_are_used_if_they_are_few(
    available: int, evaluation: int, calibration: int
) -> None:
    numbers = divided(available, {"evaluation": evaluation, "calibration": calibration})
    both = [*numbers["evaluation"], *numbers["calibration"]]
    if available == 1:
        assert both == [0, 0]
        return
    assert sorted(set(both)) == sorted(both)
    assert set(both) <= set(range(available))
    assert len(numbers["evaluation"]) in range(1, evaluation + 1)
    assert len(numbers["calibration"]) in range(1, calibration + 1)
    if available >= evaluation + calibration:
        assert (len(numbers["evaluation"]), len(numbers["calibration"])) == (evaluation, calibration)
