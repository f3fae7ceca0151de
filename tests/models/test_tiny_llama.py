"""The small llama that sorts digits."""

from __future__ import annotations

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.tasks.models.llama import Llama, LlamaSizes, causal_mask
from qnnsweep.tasks.models.tiny_llama import CONTEXT, PROMPT, SORTED, prompts, tiny_llama

pytestmark = pytest.mark.slow


def test_the_model_sorts_nearly_all_prompts_it_has_not_seen_and_the_training_is_reproducible() -> None:
    model = tiny_llama(CONTEXT)

    digits = torch.tensor([sequence_of(sequence) for sequence in prompts(200, split="evaluation")])
    answers = digits.sort(1).values
    read = torch.cat([digits, torch.full((200, 1), SORTED), answers[:, :-1]], 1)
    logits = model(read, causal_mask(CONTEXT, CONTEXT, 0), torch.arange(CONTEXT)[None])["logits"]
    right = (logits[:, PROMPT - 1 :].argmax(-1) == answers).all(1)
    assert 0.95 < float(right.float().mean()) <= 1


def sequence_of(sequence: dict) -> list[int]:
    return [int(word) for word in sequence["name"].split()]


def test_a_sequence_is_a_prefill_and_one_decode_step_per_further_digit_with_the_right_digits_as_labels() -> None:
    (sequence,) = prompts(1, split="calibration")
    assert [step["method"] for step in sequence["steps"]] == ["prefill", *["decode"] * 5]
    assert [step["label"] for step in sequence["steps"]] == sorted(sequence_of(sequence))
    model = load(["model=tiny_llama"]).cells[0].request.model
    shapes = {method.name: {spec.name: spec.shape for spec in method.inputs} for method in model.methods or ()}
    for step in sequence["steps"]:
        for name, tensor in step["inputs"].items():
            assert list(tensor.shape) == shapes[step["method"]][name]


def test_decoding_with_a_cache_gives_the_scores_of_reading_everything_at_once() -> None:

    torch.manual_seed(0)
    sizes = LlamaSizes(vocabulary=7, width=16, layers=2, heads=4, kv_heads=2, hidden=16)
    whole, decode = Llama(sizes, 4, 4), Llama(sizes, 4, 1)
    decode.load_state_dict(whole.state_dict())
    tokens = torch.tensor([[3, 1, 6, 2]])
    everything = whole(tokens, causal_mask(4, 4, 0), torch.arange(4)[None])["logits"]
    caches = {
        f"{kind}_{layer}": torch.zeros(1, 2, *size) for kind, size in (("k", (4, 3)), ("v", (3, 4))) for layer in (0, 1)
    }
    for start in range(4):
        step = decode(tokens[:, start : start + 1], causal_mask(1, 4, start), torch.tensor([[start]]), *caches.values())
        torch.testing.assert_close(step["logits"][0, 0], everything[0, start], rtol=1e-4, atol=1e-5)
        if start < 3:
            for name, cache in caches.items():
                cache.narrow(3 if name[0] == "k" else 2, start, 1).copy_(step[name])
