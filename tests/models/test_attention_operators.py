"""The operators of transformers as cases."""

from __future__ import annotations

import torch

from qnnsweep.tasks.models.attention_operators import cases, inputs, module


def test_every_case_computes_on_its_samples_which_have_its_shapes() -> None:
    listed = [*cases()]
    assert len({case["name"] for case in listed}) == len(listed)
    for case in listed:
        first, second = (sample["inputs"] for sample in inputs(2, **case["arguments"]))
        assert {name: value.shape for name, value in first.items()} == {
            name: value.shape for name, value in case["inputs"].items()
        }
        assert not any(torch.equal(first[name], second[name]) for name in first)
        answers = [module(**case["arguments"])(*first.values()) for _ in range(2)]
        assert torch.equal(*answers), "the weights are the same each time"
        assert torch.isfinite(answers[0]).all()
