"""A small llama that sorts digits: a language model with an exact answer, which is trained at export.

A sequence is a prompt of `DIGITS` digits and the token `SORTED`, then the same digits in ascending order.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models.llama import Llama, LlamaSizes, causal_mask
from qnnsweep.tasks.models.reproducible import reproducible
from qnnsweep.tasks.models.sample import part

SEED = 0
DIGITS = 6
SORTED = 10
PROMPT = DIGITS + 1
CONTEXT = PROMPT + DIGITS - 1
"""The number of tokens that the model reads: the last digit of the answer is not read."""
SIZES = LlamaSizes(vocabulary=SORTED + 1, width=32, layers=2, heads=4, kv_heads=2, hidden=64)
TRAINING_STEPS = 450
BATCH = 64
LEARNING_RATE = 5e-3
SPLITS = {"calibration": 1, "evaluation": 2}
"""Per split, the seed of its prompts."""


def tiny_llama(tokens: int = 1) -> nn.Module:
    """Return the trained model in eval mode. `tokens`: how many tokens a call reads."""
    model = Llama(SIZES, CONTEXT, tokens)
    model.load_state_dict(_trained())
    model.weights_origin, model.vocabulary = "trained", [*map(str, range(SORTED)), ">"]
    return model.eval().requires_grad_(False)


@cache
def _trained() -> dict[str, torch.Tensor]:
    """Train the model for half a minute, bit-reproducibly, and return its weights."""
    with reproducible(SEED):
        model = Llama(SIZES, CONTEXT, CONTEXT)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, TRAINING_STEPS)
        mask, position = causal_mask(CONTEXT, CONTEXT, 0), torch.arange(CONTEXT)[None]
        for _ in range(TRAINING_STEPS):
            digits = torch.randint(10, (BATCH, DIGITS))
            answer = digits.sort(1).values
            read = torch.cat([digits, torch.full((BATCH, 1), SORTED), answer[:, :-1]], 1)
            logits = model(read, mask, position)["logits"]
            loss = nn.functional.cross_entropy(logits[:, PROMPT - 1 :].flatten(0, 1), answer.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.state_dict()


def prompts(count: int, *, split: str) -> list[dict[str, Any]]:
    """Return sequences of a split (`calibration`, `evaluation`): a prefill of the prompt, then decode steps.

    The label of a step is the right next token. Raises RequestError if there is no such split.
    """
    return list(islice(_sequences(part(SPLITS, split)), count))


def _sequences(seed: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        digits = torch.randint(10, (DIGITS,), generator=generator)
        answer = digits.sort().values.tolist()
        prompt = torch.tensor([[*digits.tolist(), SORTED]], dtype=torch.int32)
        steps: list[dict[str, Any]] = [
            {"method": "prefill", "inputs": {"tokens": prompt, **_where(PROMPT, 0)}, "label": answer[0]}
        ]
        for number, label in enumerate(answer[1:]):
            steps.append({"method": "decode", "inputs": _where(1, PROMPT + number), "label": label})
        yield {"name": " ".join(map(str, digits.tolist())), "steps": steps}


def _where(tokens: int, start: int) -> dict[str, torch.Tensor]:
    """Return the inputs that say where a step's tokens are."""
    position = torch.arange(start, start + tokens, dtype=torch.int32)[None]
    return {"mask": causal_mask(tokens, CONTEXT, start), "position": position}
