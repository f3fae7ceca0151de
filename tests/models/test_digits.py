"""The CNN that is trained at export is accurate, and its training is bit-reproducible."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.digits import SPLITS, digits, digits_cnn

DIGEST = """
import hashlib
import sys

import torch

from qnnsweep.tasks.models.digits import digits_cnn

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(int(sys.argv[1]))
weights = b"".join(tensor.numpy().tobytes() for tensor in digits_cnn().state_dict().values())
print(hashlib.sha256(weights).hexdigest(), torch.get_num_threads())
"""


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return digits_cnn()


def test_it_recognises_at_least_97_percent_of_the_held_out_digits(model: torch.nn.Module) -> None:
    samples = digits(450, split="held_out")
    right = sum(int(model(sample["inputs"]["image"]).argmax()) == sample.get("label") for sample in samples)
    assert right / len(samples) >= 0.97


def test_it_is_in_eval_mode_and_its_weights_are_marked_as_trained(model: torch.nn.Module) -> None:
    assert (model.training, model.weights_origin) == (False, "trained")


def test_training_again_gives_the_same_bits(model: torch.nn.Module) -> None:
    torch.rand(3)
    again = digits_cnn().state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_training_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    digits_cnn()
    assert torch.equal(torch.rand(4), expected)


def test_other_processes_with_other_threads_and_seeds_train_the_same_bits() -> None:
    printed = [
        subprocess.run([sys.executable, "-c", DIGEST, threads], check=True, capture_output=True, text=True).stdout
        for threads in ("1", "2")
    ]
    digests, threads = zip(*(line.split() for line in printed), strict=True)
    assert (len(set(digests)), threads) == (1, ("1", "2"))


def test_the_splits_share_no_digit_and_together_are_all() -> None:
    parts = [indices.tolist() for indices in SPLITS.values()]
    assert sorted(index for part in parts for index in part) == list(range(1797))
    assert [len(part) for part in parts] == [1347, 450]


def test_a_sample_is_one_image_with_its_label_and_the_number_of_the_digit() -> None:
    first = digits(1, split="training")[0]
    image = first["inputs"]["image"]
    assert (first.get("name"), first.get("label")) == ("digit 1", 1)
    assert (image.shape, image.dtype, float(image.min()), float(image.max())) == ((1, 1, 8, 8), torch.float32, 0.0, 1.0)


def test_if_more_digits_are_asked_for_than_there_are_all_are_returned() -> None:
    assert len(digits(451, split="held_out")) == 450


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"^split=test: it must be one of training, held_out$"):
        digits(1, split="test")
