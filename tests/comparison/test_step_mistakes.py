"""A step that computes with another position, mask, cache or token is named; one with noise is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qnnsweep.tasks.comparison.step_mistakes import (
    Ran,
    Roles,
    altered,
    first_wrong_state,
    lowest_snr_db,
    mistake_of,
    roles_of,
    same_whatever_is_read,
)
from qnnsweep.tasks.models.llama import Llama, LlamaSizes, causal_mask
from qnnsweep.tasks.records import PlannedStep, StateLink, StepPlan, TensorSpec, TokenRule

CONTEXT, WRITTEN, VOCABULARY = 16, 6, 23
MODELS = {
    "one layer": LlamaSizes(vocabulary=VOCABULARY, width=16, layers=1, heads=2, kv_heads=1, hidden=32),
    "two layers": LlamaSizes(vocabulary=VOCABULARY, width=32, layers=2, heads=4, kv_heads=2, hidden=64),
    "three layers": LlamaSizes(vocabulary=VOCABULARY, width=32, layers=3, heads=4, kv_heads=4, hidden=64),
}
Arrays = Sequence[np.ndarray]
CASES = 30


@cache
def method(name: str, tokens: int) -> tuple[Roles, Callable[[Arrays], list[np.ndarray]], list[tuple[int, ...]]]:
    """Return the roles of a model's method, the method, and the shapes of its caches."""
    sizes = MODELS[name]
    torch.manual_seed(0)
    model = Llama(sizes, CONTEXT, tokens).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                nn.init.normal_(value, 0, 0.5)
    keys = (1, sizes.kv_heads, sizes.head, CONTEXT - tokens)
    caches = [keys] * sizes.layers + [(1, sizes.kv_heads, CONTEXT - tokens, sizes.head)] * sizes.layers
    inputs = [
        TensorSpec(name="tokens", shape=(1, tokens), dtype="int32"),
        TensorSpec(name="mask", shape=(1, 1, tokens, CONTEXT), dtype="float32"),
        TensorSpec(name="position", shape=(1, tokens), dtype="int32"),
        *(TensorSpec(name=f"c_{number}", shape=shape, dtype="float32") for number, shape in enumerate(caches)),
    ]
    names = [f"{letter}_{layer}" for letter in "kv" for layer in range(sizes.layers)]
    outputs = [TensorSpec(name=name, shape=(1,), dtype="float32") for name in ("logits", *names)]
    links = tuple(
        StateLink(
            method="m",
            output=1 + number,
            to_method="m",
            input=3 + number,
            update="append",
            axis=3 - number // sizes.layers,
        )
        for number in range(2 * sizes.layers)
    )
    plan = StepPlan(links=links, tokens=(TokenRule(method="m", output=0, input=0),), sequences=((),))

    def run(arrays: Arrays) -> list[np.ndarray]:
        with torch.no_grad():
            return [
                value.numpy() for value in model(*map(torch.from_numpy, map(np.ascontiguousarray, arrays))).values()
            ]

    roles = roles_of(plan, "m", inputs, outputs)
    assert roles is not None
    return roles, run, caches


def step_of(name: str, tokens: int, seed: int) -> Ran:
    """Return a step whose cache has `WRITTEN` columns; its outputs are not set."""
    random = np.random.default_rng(seed)
    _, _, caches = method(name, tokens)
    mask = causal_mask(tokens, CONTEXT, WRITTEN).numpy()
    position = np.arange(WRITTEN, WRITTEN + tokens, dtype=np.int32)[None]
    read = random.integers(0, VOCABULARY, (1, tokens)).astype(np.int32)
    states = []
    for number, shape in enumerate(caches):
        state = random.normal(size=shape).astype(np.float32)
        axis = 3 if number < len(caches) // 2 else 2
        state[(slice(None),) * axis + (slice(WRITTEN, None),)] = 0
        states.append(state)
    before = int((read[0, 0] + 1 + random.integers(VOCABULARY - 1)) % VOCABULARY)
    return Ran(inputs=[read, mask, position, *states], outputs=[], keep=None, before=before)


def noisy(outputs: Arrays, random: np.random.Generator, share: float = 0.02) -> list[np.ndarray]:
    """Return outputs with noise of 34 dB."""
    return [(value + share * value.std() * random.standard_normal(value.shape)).astype(np.float32) for value in outputs]


def ran(step: Ran, outputs: Arrays) -> Ran:
    return Ran(inputs=step.inputs, outputs=outputs, keep=step.keep, before=step.before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [1, 4])
def test_every_mistake_is_named_in_every_model(name: str, tokens: int) -> None:
    roles, run, _ = method(name, tokens)
    wrong: list[tuple[int, str, str | None]] = []
    kinds = set()
    for seed in range(CASES):
        step, random = step_of(name, tokens, seed), np.random.default_rng(seed)
        right = run(step.inputs)
        for mistake, inputs in altered(roles, step):
            on_device = ran(step, noisy(run(inputs), random))
            if lowest_snr_db(roles, on_device, right) < 20:  # less noise than that is hardly more than the device's
                kinds.add(mistake)
                found = mistake_of(roles, on_device, run)
                if found != mistake:
                    wrong.append((seed, mistake, found))
    assert wrong == []
    assert len(kinds) >= 10


@pytest.mark.parametrize("name", MODELS)
def test_keys_that_are_rotated_in_another_way_are_named(name: str) -> None:
    roles, run, _ = method(name, 1)
    random = np.random.default_rng(0)
    for seed in range(CASES):
        step = step_of(name, 1, seed)
        outputs = noisy(run(step.inputs), random)
        moved = [*step.inputs]
        moved[2] = moved[2] + np.int32(3)  # by angles that no neighbouring position has
        layers = len(outputs) // 2
        outputs[: 1 + layers] = noisy(run(moved), random)[: 1 + layers]
        outputs[1 + layers + 1 :] = noisy(run(moved), random)[1 + layers + 1 :]
        assert mistake_of(roles, ran(step, outputs), run) == "other_rotation"


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_last_step_of_a_context_has_mistakes_too_but_none_at_a_later_position(tokens: int) -> None:
    roles, run, _ = method("two layers", tokens)
    step, random = step_of("two layers", tokens, 0), np.random.default_rng(0)
    last = np.arange(CONTEXT - tokens, CONTEXT, dtype=np.int32)[None]
    step = Ran(inputs=[*step.inputs[:2], last, *step.inputs[3:]], outputs=[], keep=None, before=step.before)
    cases = dict(altered(roles, step))
    with pytest.raises(IndexError):
        run(cases.pop("position_later"))
    assert mistake_of(roles, ran(step, noisy(run(cases["position_earlier"]), random)), run) == "position_earlier"
    assert mistake_of(roles, ran(step, noisy(run(step.inputs), random, 2.0)), run) is None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [0.02, 0.5, 2.0])
def test_noise_is_no_mistake(name: str, share: float) -> None:
    roles, run, _ = method(name, 1)
    for seed in range(CASES):
        step = step_of(name, 1, seed)
        on_device = ran(step, noisy(run(step.inputs), np.random.default_rng(seed), share))
        assert mistake_of(roles, on_device, run) is None


def test_the_first_wrong_state_is_that_of_the_first_layer() -> None:
    roles, run, _ = method("three layers", 1)
    step = step_of("three layers", 1, 0)
    right = run(step.inputs)
    outputs = [*right]
    for output in (2, 3, 6):  # the keys of layers 1 and 2, and the values of layer 2
        outputs[output] = outputs[output] * 2
    assert first_wrong_state(roles, ran(step, outputs), right) == 2
    assert first_wrong_state(roles, ran(step, right), right) is None


def test_padding_does_not_count() -> None:
    roles, run, _ = method("two layers", 4)
    step = step_of("two layers", 4, 0)
    right = run(step.inputs)
    outputs = [value.copy() for value in right]
    outputs[0][:, 3] += 9
    outputs[1][..., 3] += 9
    padded = Ran(inputs=step.inputs, outputs=outputs, keep=3, before=None)
    assert lowest_snr_db(roles, padded, right) == 200
    assert lowest_snr_db(roles, ran(step, outputs), right) < 20


def test_scores_that_do_not_depend_on_the_text_are_named() -> None:
    scores: list[Any] = [np.random.default_rng(seed).normal(size=(1, 5)) for seed in range(3)]
    texts = [[1, 2], [3, 4], [1, 5]]
    assert same_whatever_is_read([scores[0]] * 3, scores, texts)
    assert not same_whatever_is_read(scores, scores, texts)
    assert not same_whatever_is_read([scores[0]] * 3, [scores[0]] * 3, texts)
    assert not same_whatever_is_read([scores[0]] * 3, scores, [[1, 2]] * 3)


def test_a_method_without_tokens_has_no_roles() -> None:
    plan = StepPlan(links=(), tokens=(), sequences=((PlannedStep(method="m", inputs=(), keep=None),),))
    assert roles_of(plan, "m", [], []) is None
