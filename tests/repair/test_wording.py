"""Operators in words."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.repair.wording import operators_phrase


@pytest.mark.parametrize(
    ("target", "modules", "phrase"),
    [
        ("aten._native_batch_norm_legit_no_training.default", ["a.1", "a.4"], "2 batch norms (a.1 and 1 more)"),
        ("aten.addmm.default", ["head"], "the linear layer head"),
        ("aten.roll.default", ["x", "x"], "2 aten.roll.default operators (x)"),
        (None, ["x", "y"], "2 operators (x and 1 more)"),
        (None, ["x", "y", "x", "z"], "4 operators (x and 2 more modules)"),
    ],
)
def test_a_known_function_has_a_noun(target: str | None, modules: list[str], phrase: str) -> None:
    assert operators_phrase(target, modules) == phrase
