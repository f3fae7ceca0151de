"""The small recurrent network that follows a phase."""

from __future__ import annotations

import torch

from qnnsweep.tasks.models.tiny_gru import WIDTH, oscillations, signals, tiny_gru


def test_the_network_follows_the_phase_of_a_signal_that_is_longer_than_those_of_its_training() -> None:
    model = tiny_gru()
    noisy, phase = signals(16, 200, torch.Generator().manual_seed(7))
    state, errors = torch.zeros(16, WIDTH), []
    for step in range(200):
        answer = model(noisy[:, step], state)
        state = answer["state"]
        errors.append(answer["phase"] - phase[:, step])
    assert float(torch.stack(errors[20:]).square().mean().sqrt()) < 0.3


def test_a_sequence_has_one_step_per_four_samples_and_no_state() -> None:
    (sequence,) = oscillations(1, split="evaluation", steps=5)
    assert [{name: tuple(value.shape) for name, value in step["inputs"].items()} for step in sequence["steps"]] == [
        {"samples": (1, 4)}
    ] * 5
