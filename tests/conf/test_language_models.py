"""`model=llm:FOLDER`: the methods, the states and the samples of a checkpoint's folder, before anything is exported."""

import json
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.language_models import Decoder, read_decoder
from tests.conf.test_named import request

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def folder(tmp_path: Path, **changes: Any) -> Path:
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def decoder(tmp_path: Path, **changes: Any) -> Decoder:
    return read_decoder(folder(tmp_path, **changes), "llm:x")


def test_the_sizes_are_those_of_the_configuration(tmp_path: Path) -> None:
    found = decoder(tmp_path)
    assert (found.family.name, found.layers, found.heads, found.head, found.vocabulary) == ("qwen2", 2, 2, 8, 128)
    assert decoder(tmp_path, head_dim=16).head == 16
    assert decoder(tmp_path, num_key_value_heads=None).heads == 4
    assert decoder(tmp_path, architectures=["Qwen3ForCausalLM"]).head == 128
    assert decoder(tmp_path, sliding_window=16).sliding_window == 16
    assert decoder(tmp_path, sliding_window=16, use_sliding_window=False).sliding_window is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"architectures": ["MistralForCausalLM"]},
            "has no MistralForCausalLM, which its config.json names; it has Llama, Qwen2, ",
        ),
        ({"architectures": None}, "needs a class in its config.json"),
        ({"architectures": "Llama"}, "needs a class in its config.json"),
        ({"hidden_size": "wide"}, "states no hidden_size"),
        ({"num_hidden_layers": 0}, "states no num_hidden_layers"),
    ],
)
def test_a_folder_that_is_no_decoder_of_the_static_llama_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=problem):
        decoder(tmp_path, **changes)


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no config\.json; name the folder of a checkpoint"):
        request(f"model=llm:{tmp_path}")
    with pytest.raises(RequestError, match="no such folder"):
        request(f"model=llm:{tmp_path}/absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RequestError, match="cannot be read"):
        request(f"model=llm:{tmp_path}")


def test_prefill_and_decode_have_one_cache_per_layer_and_a_prefill_continues_a_prefill(tmp_path: Path) -> None:
    words = ["model.arguments.context=64", "model.arguments.ar_len=16"]
    model = request(f"model=llm:{folder(tmp_path)}", *words).model
    assert model.methods is not None
    assert model.states is not None
    assert model.driver is not None
    shapes = {method.name: {spec.name: spec.shape for spec in method.inputs} for method in model.methods}
    assert shapes["prefill"] == {
        "tokens": [1, 16],
        "mask": [1, 16, 64],
        "position": [1, 16],
        "k_0": [1, 2, 8, 48],
        "k_1": [1, 2, 8, 48],
        "v_0": [1, 2, 48, 8],
        "v_1": [1, 2, 48, 8],
    }
    assert shapes["decode"]["k_1"] == [1, 2, 8, 63]
    links = {(state.method, state.to_method) for state in model.states}
    assert links == {("prefill", "prefill"), ("prefill", "decode"), ("decode", "decode")}
    assert (model.driver.output, model.driver.input, model.driver.tokens) == ("0", "tokens", "greedy")


def test_one_file_of_texts_is_divided_and_two_are_not(tmp_path: Path) -> None:
    checkpoint, text = folder(tmp_path), tmp_path / "a.txt"
    text.write_text("One.\n")
    model = request(f"model=llm:{checkpoint}", f"samples={text}").model
    evaluation, calibration = model.evaluation, model.calibration
    assert evaluation is not None
    assert calibration is not None
    assert evaluation.arguments["texts"] == calibration.arguments["texts"] == str(text)
    assert calibration.arguments["counts"] == {"evaluation": 4, "calibration": 16}
    model = request(f"model=llm:{checkpoint}", f"samples={text}", f"calibration={tmp_path / 'config.json'}").model
    assert model.evaluation is not None
    assert model.evaluation.arguments["counts"] is None


def test_a_file_of_configuration_can_name_the_texts(tmp_path: Path) -> None:
    words = [f"model=llm:{folder(tmp_path)}", "+model.evaluation.arguments.texts=a.txt"]
    model = request(*words).model
    assert model.evaluation is not None
    assert model.calibration is not None
    assert model.evaluation.arguments["texts"] == model.calibration.arguments["texts"] == "a.txt"
    model = request(*words, "+model.calibration.arguments.texts=b.txt").model
    assert model.calibration is not None
    assert (model.calibration.arguments["texts"], model.calibration.arguments["counts"]) == ("b.txt", None)


@pytest.mark.parametrize(
    ("words", "changes", "problem"),
    [
        (["model.arguments.context=40"], {}, "model.arguments.context=40: 32 tokens of a prompt"),
        (["model.arguments.ar_len=many"], {}, "model.arguments.ar_len=many: an integer from 1"),
        ([], {"sliding_window": 64}, "larger than the sliding window of this checkpoint, 64"),
        (["samples=absent.txt"], {}, "no such file or folder"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_any_work(
    words: list[str], changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=problem):
        request(f"model=llm:{folder(tmp_path, **changes)}", *words)
