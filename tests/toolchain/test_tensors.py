"""Tensors in blobs, and a module's output as named tensors."""

from __future__ import annotations

import resource
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.tensors import flat_outputs, outputs_by_sample, put_tensors, read_samples, read_tensors

DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "uint16"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "artifacts")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_a_tensor_comes_back_with_its_type_shape_and_bits(dtype: str, shape: tuple[int, ...], store: Store) -> None:
    tensor = torch.arange(6).reshape(2, 3)[: shape[0] if shape else None].to(getattr(torch, dtype))
    tensor = tensor if shape else tensor[0, 1]
    back = read_tensors(store, put_tensors(store, {"0/x": tensor}))
    assert list(back) == ["0/x"]
    assert (back["0/x"].dtype, back["0/x"].shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back["0/x"], tensor)


def test_nan_and_infinity_come_back_as_they_are(store: Store) -> None:
    tensor = torch.tensor([float("nan"), float("inf"), -0.0])
    back = read_tensors(store, put_tensors(store, {"x": tensor}))["x"]
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


def test_views_shared_memory_and_gradients_are_no_obstacle(store: Store) -> None:
    whole = torch.arange(6.0).reshape(2, 3).requires_grad_()
    back = read_tensors(store, put_tensors(store, {"whole": whole, "part": whole[1], "turned": whole.T}))
    assert {name: tensor.tolist() for name, tensor in back.items()} == {
        "whole": [[0, 1, 2], [3, 4, 5]],
        "part": [3, 4, 5],
        "turned": [[0, 3], [1, 4], [2, 5]],
    }
    assert not any(tensor.requires_grad for tensor in back.values())


def test_equal_tensors_are_equal_blobs_whatever_their_order(store: Store) -> None:
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    assert put_tensors(store, {"a": a, "b": b}) == put_tensors(store, {"b": b.clone(), "a": a.clone()})


def test_a_conjugate_and_a_negative_view_are_stored_as_their_values(store: Store) -> None:
    value = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert (value.is_conj(), value.imag.is_neg()) == (True, True)
    back = read_tensors(store, put_tensors(store, {"value": value, "imaginary": value.imag}))
    assert back["value"].tolist() == [1 - 2j, 3 + 4j]
    assert back["imaginary"].tolist() == [-2.0, 4.0]


def test_a_disk_without_room_is_named(store: Store) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(EnvironmentUnusable, match=r"^artifacts: cannot use .*: File too large"):
            put_tensors(store, {"large": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.partial.iterdir()) == []


def test_what_is_written_into_a_tensor_that_was_read_is_not_written_into_its_file(store: Store) -> None:
    blob = put_tensors(store, {"a": torch.zeros(3)})
    read_tensors(store, blob)["a"].add_(1)
    assert read_tensors(store, blob)["a"].tolist() == [0.0, 0.0, 0.0]


def test_bytes_that_are_no_tensors_are_refused(store: Store) -> None:
    blob = store.put_bytes(b"not a safetensors file")
    with pytest.raises(EvidenceError, match=rf"^blob {blob.sha256} is not a safetensors file: "):
        read_tensors(store, blob)


def test_samples_are_read_in_the_order_of_their_names_and_no_further_than_asked(store: Store) -> None:
    tensors = {f"{sample}/{name}": torch.tensor(10 * sample + i) for sample in range(12) for i, name in enumerate("ba")}
    samples = read_samples(store, put_tensors(store, tensors), ["a", "b"], 11)
    assert [tuple(int(tensor) for tensor in sample) for sample in samples] == [(10 * s + 1, 10 * s) for s in range(11)]


Pair = namedtuple("Pair", ["logits", "embedding"])


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


torch.utils._pytree.register_dataclass(Answer, serialized_type_name="tests.toolchain.test_tensors.Answer")
A, B, C = (torch.tensor([float(number)]) for number in range(3))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (A, {"output": A}),
        ([A], {"0": A}),
        ((A, B), {"0": A, "1": B}),
        ({"logits": A, "boxes": B}, {"logits": A, "boxes": B}),
        (Pair(A, B), {"logits": A, "embedding": B}),
        (Answer(A), {"logits": A}),
        (Answer(A, B), {"logits": A, "hidden": B}),
        ((A, None, 3, "text", B), {"0": A, "4": B}),
        ({"heads": [A, B], "loss": C}, {"heads.0": A, "heads.1": B, "loss": C}),
        (None, {}),
        ("text", {}),
    ],
)
def test_an_answer_is_its_tensors_by_position_or_key(answer: object, expected: dict[str, torch.Tensor]) -> None:
    outputs = flat_outputs(answer)
    assert list(outputs) == list(expected)
    assert all(outputs[name] is expected[name] for name in expected)


def test_outputs_are_kept_by_sample_and_index() -> None:
    outputs = outputs_by_sample([{"logits": A, "boxes": B}, {"logits": B, "boxes": C}])
    assert {key: tensor.item() for key, tensor in outputs.items()} == {"0/0": 0, "0/1": 1, "1/0": 1, "1/1": 2}
