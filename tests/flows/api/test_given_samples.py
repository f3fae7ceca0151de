"""Samples in the forms in which PyTorch users hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.errors import RequestError

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.toolchain


def found(samples: object, most: int = 100) -> list[Any]:
    """Return the samples with their tensors as lists."""
    from qnnsweep.tasks.toolchain.given_samples import given_samples
    from tests.flows.api.own_model import Adder

    return [as_lists(sample) for sample in given_samples(samples, Adder(), most, "samples")]


def as_lists(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: as_lists(part) for key, part in value.items()}
    return type(value)(map(as_lists, value)) if isinstance(value, list | tuple) else value


def ones(*shape: int) -> torch.Tensor:
    import torch

    return torch.ones(*shape)


def test_a_tensor_a_tuple_and_a_dict_are_one_sample() -> None:
    assert found(ones(2)) == [{"inputs": [1, 1]}]
    assert found(np.ones(2, np.float32)) == [{"inputs": [1, 1]}]
    assert found((ones(1), ones(1))) == [{"inputs": ([1], [1])}]
    assert found({"left": ones(1), "right": ones(1)}) == [{"inputs": {"left": [1], "right": [1]}, "label": None}]


def test_an_integer_behind_the_needed_arguments_is_a_label() -> None:
    import torch

    assert found([(ones(1), 3)]) == [{"inputs": [1], "label": 3}]
    assert found([(ones(1), torch.tensor([5]))]) == [{"inputs": [1], "label": 5}]
    assert found([[ones(1), ones(1), np.int64(2)]]) == [{"inputs": ([1], [1]), "label": 2}]
    assert found([{"left": ones(1), "labels": torch.tensor(1)}]) == [{"inputs": {"left": [1]}, "label": 1}]


def test_a_float_behind_the_needed_arguments_is_an_argument() -> None:
    assert found([(ones(1), ones(1))]) == [{"inputs": ([1], [1])}]
    assert found([(ones(1), 0.5)]) == [{"inputs": ([1], 0.5)}]
    assert found([(ones(1), True)]) == [{"inputs": ([1], True)}]


def test_the_items_of_a_dataset_become_batches_of_one_and_those_of_a_loader_stay() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(6.0).reshape(6, 1), torch.arange(6))
    of_data = [{"inputs": [[float(number)]], "label": number} for number in range(6)]
    assert found(data) == of_data
    assert found(data, most=2) == of_data[:2]
    assert found(DataLoader(data)) == of_data
    pairs = [[[0.0], [1.0]], [[2.0], [3.0]], [[4.0], [5.0]]]
    assert found(DataLoader(data, batch_size=2)) == [{"inputs": pair, "label": None} for pair in pairs]


def test_a_generator_is_read_only_as_far_as_samples_are_taken() -> None:
    numbers = iter(range(10))
    assert len(found((ones(1) for _ in numbers), most=3)) == 3
    assert next(numbers) == 3


@pytest.mark.parametrize("wrong", ["a folder", 3, None])
def test_what_is_no_sample_is_refused(wrong: object) -> None:
    kind = type(wrong).__name__
    with pytest.raises(RequestError, match=f"^samples: `{kind}` is no sample; give a tensor, a tuple"):
        found(wrong)


def test_no_sample_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^samples: there is no sample$"):
        found([])


@given(count=st.integers(1, 400), most=st.integers(1, 20))
def test_no_sample_has_two_uses_unless_they_are_few_and_the_evaluation_has_as_many_as_asked(
    count: int, most: int
) -> None:
    from qnnsweep.tasks.toolchain.given_samples import divided

    samples = [{"inputs": number} for number in range(count)]
    use = divided(samples, most)
    assert len(use.evaluation) == min(count, most)
    if count <= most:
        assert (use.evaluation, use.calibration, use.unseen) == (samples, samples, ())
        return
    numbers = [sample["inputs"] for part in (use.evaluation, use.calibration, use.unseen) for sample in part]
    assert len(numbers) == len(set(numbers)) <= count
    assert 1 <= len(use.calibration) <= 128
    assert len(use.unseen) <= 64
    assert not use.unseen or len(use.calibration) >= 16
