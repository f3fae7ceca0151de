"""A decoder of a checkpoint's folder computes what transformers computes, and texts become steps of its methods."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from qnnsweep.conf.language_models import FACTORY
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.language_model import language_model
from qnnsweep.tasks.models.language_texts import sequences
from tests.models.checkpoints import FAMILIES, VOCABULARY, write_checkpoint

CONTEXT, AR_LEN = 64, 16
ALMOST = {"codegen": 60.0}
"""The static llama has GELU where this family has its approximation by tanh."""


def scores_of(checkpoint: Path, texts: Path, **options: Any) -> tuple[list[int], torch.Tensor]:
    """Read one line of a text by the steps of its sequence, as the loop of a device does; return tokens and scores."""
    module = language_model(checkpoint=str(checkpoint), context=CONTEXT)
    (sequence,) = sequences(
        1, checkpoint=str(checkpoint), split="calibration", texts=str(texts), context=CONTEXT, ar_len=AR_LEN, **options
    )
    attention = module.layers[0].attention  # type: ignore[index]
    keys = torch.zeros(len(module.layers), 1, attention.n_kv_heads, attention.head_dim, CONTEXT)  # type: ignore
    values = torch.zeros(len(module.layers), 1, attention.n_kv_heads, CONTEXT, attention.head_dim)  # type: ignore
    tokens, scores, start = [], [], 0
    for step in sequence["steps"]:
        inputs = step["inputs"]
        size = inputs["tokens"].shape[1]
        keep = step.get("keep", size)
        cached = [*(one[..., : CONTEXT - size] for one in keys), *(one[:, :, : CONTEXT - size] for one in values)]
        found, new_keys, new_values = module(*inputs.values(), *cached)
        for layer, (key, value) in enumerate(zip(new_keys, new_values, strict=True)):
            keys[layer][..., start : start + keep] = key[..., :keep]
            values[layer][:, :, start : start + keep] = value[:, :, :keep]
        tokens += inputs["tokens"][0, :keep].tolist()
        scores.append(found[0, :keep])
        start += keep
    return tokens, torch.cat(scores)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefill_in_parts_and_decode_steps_have_the_scores_of_transformers(family: str, tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path / family, family)
    (tmp_path / "text.txt").write_text("After the storm, the harbour was full of broken masts and gulls.\n")
    tokens, scores = scores_of(tmp_path / family, tmp_path / "text.txt")
    assert 2 * AR_LEN < len(tokens) < CONTEXT - AR_LEN
    with torch.no_grad():
        expected = reference(torch.tensor([tokens]), use_cache=False).logits[0]
    noise = (scores - expected).double().norm() / expected.double().norm()
    assert -20 * noise.log10() > ALMOST.get(family, 100.0)


def test_the_last_tokens_of_a_calibration_are_read_one_by_one_and_an_evaluation_goes_on_by_itself(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path, "qwen2")
    (tmp_path / "text.txt").write_text("Snow falls on the mountain road.\nThe pump stops.\n")
    options = {"checkpoint": str(tmp_path), "texts": str(tmp_path / "text.txt"), "context": CONTEXT, "ar_len": AR_LEN}
    (calibration, _) = sequences(9, split="calibration", **options)
    (evaluation, short) = sequences(9, split="evaluation", new_tokens=3, **options)
    prefills = [step for step in calibration["steps"] if step["method"] == "prefill"]
    decodes = [step for step in calibration["steps"] if step["method"] == "decode"]
    assert len(decodes) == 8
    assert all("tokens" in step["inputs"] for step in decodes)
    assert sum(step.get("keep", AR_LEN) for step in prefills) + 8 == sum(
        step.get("keep", AR_LEN) for step in evaluation["steps"] if step["method"] == "prefill"
    )
    assert [step["method"] for step in evaluation["steps"][-3:]] == ["decode"] * 3
    assert not any("tokens" in step["inputs"] for step in evaluation["steps"][-3:])
    assert short["name"] == "The pump stops."
    assert short["origin"] == "lines of text.txt, tokenised"
    last = evaluation["steps"][-1]["inputs"]["position"]
    assert last.dtype == torch.int32
    assert last.tolist() == [[int(last)]]


def test_a_long_text_is_several_sequences_that_fit_the_context(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "text.txt").write_text("The satellite entered orbit. " * 20)
    found = [
        *sequences(
            4, checkpoint=str(tmp_path), split="evaluation", texts=str(tmp_path / "text.txt"), context=32, ar_len=8
        )
    ]
    assert [one["name"][-8:] for one in found[1:]] == ["(part 2)", "(part 3)", "(part 4)"]
    assert all(int(step["inputs"]["position"].max()) < 32 for one in found for step in one["steps"])


def test_without_a_tokeniser_tokens_are_random_and_a_text_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama", with_tokeniser=False)
    (tmp_path / "text.txt").write_text("Snow.\n")
    options = {"checkpoint": str(tmp_path), "split": "evaluation"}
    first, again = (next(iter(sequences(1, **options))) for _ in range(2))
    assert first["origin"] == "random tokens"
    assert torch.equal(first["steps"][0]["inputs"]["tokens"], again["steps"][0]["inputs"]["tokens"])
    assert int(first["steps"][0]["inputs"]["tokens"].max()) < VOCABULARY
    with pytest.raises(RequestError, match="has no tokeniser"):
        next(iter(sequences(1, texts=str(tmp_path / "text.txt"), **options)))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mlp_bias": True}, "has no place for layers.0.feed_forward.w1.bias, and 5 more"),
        ({"hidden_act": "relu"}, "has no activation relu"),
    ],
)
def test_what_the_static_llama_cannot_compute_is_one_clear_line(
    settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "llama", **settings)
    with pytest.raises(RequestError, match=problem):
        language_model(checkpoint=str(tmp_path))


def test_a_folder_without_weights_says_how_they_are_written(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RequestError, match=r"no weights in safetensors; model\.save_pretrained"):
        language_model(checkpoint=str(tmp_path))


def test_weights_in_the_form_of_another_library_are_left_out_beside_those_of_transformers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    right = language_model(checkpoint=str(tmp_path)).state_dict()
    (tmp_path / "consolidated.safetensors").write_bytes(save({"layers.0.attention.wq.weight": torch.zeros(32, 32)}))
    found = language_model(checkpoint=str(tmp_path)).state_dict()
    assert all(torch.equal(found[name], value) for name, value in right.items())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RequestError, match=r"layers\.0\.attention\.wq\.weight is no weight's name in transformers"):
        language_model(checkpoint=str(tmp_path))


def test_weights_in_several_files_are_those_of_the_index(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "whole", "llama")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len([*(tmp_path / "parts").glob("*.safetensors")]) > 1
    one, other = (language_model(checkpoint=str(tmp_path / name)).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], value) for name, value in other.items())


@pytest.mark.parametrize(
    ("name", "problem"),
    [("model.safetensors", r"model\.safetensors cannot be read"), ("tokenizer.json", "its tokeniser cannot be read")],
)
def test_a_damaged_file_is_one_line(name: str, problem: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(RequestError, match=problem):
        language_model(checkpoint=str(tmp_path))


def test_the_factory_of_a_language_model_is_this_one() -> None:
    assert f"{language_model.__module__}:{language_model.__name__}" == FACTORY
