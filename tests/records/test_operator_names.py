"""The operators that a word of a command line means."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.operator_names import operator_named, operators_named

KNOWN = (("aten_linear_default", "head"), ("aten_relu_default", "body"), ("aten_add_tensor", "body"), ("aten_mul", ""))


def test_a_word_is_the_name_of_an_operator_or_the_path_of_a_module() -> None:
    assert operators_named("aten_linear_default", KNOWN) == ["aten_linear_default"]
    assert operators_named("head", KNOWN) == ["aten_linear_default"]
    assert operators_named("body", KNOWN) == ["aten_relu_default", "aten_add_tensor"]
    assert operator_named("head", KNOWN) == "aten_linear_default"


def test_a_module_of_several_operators_names_them() -> None:
    expected = "^OPERATOR=body: the module has several operators; write one of aten_relu_default, aten_add_tensor$"
    with pytest.raises(RequestError, match=expected):
        operator_named("body", KNOWN)


def test_the_nearest_name_is_offered() -> None:
    for word, nearest in (("haed", "did you mean head\\? "), ("zzz", "")):
        expected = f"^OPERATOR={word}: no such operator; {nearest}`qnnsweep list operators` lists them$"
        with pytest.raises(RequestError, match=expected):
            operator_named(word, KNOWN)
