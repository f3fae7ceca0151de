"""The records of programs with several methods, and the names of their parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.tasks.records.methods import in_method, named_operator
from qnnsweep.tasks.storage.codec import decode, encode
from qnnsweep.tasks.storage.digest import digest
from tests.sample_records import CAPTURE, CONV, EXPORTED, LOWERED, QUANTIZED, blob

RECORDS = [(EXPORTED, "program"), (QUANTIZED, "program"), (LOWERED, "outputs_edge"), (CAPTURE, "outputs")]


@pytest.mark.parametrize(("record", "field"), RECORDS, ids=lambda value: type(value).__name__)
def test_the_methods_of_a_program_are_stored_and_read_back_in_their_order(record: Any, field: str) -> None:
    (method,) = record.methods
    others = [replace(method, **{field: blob(letter)}) for letter in "de"]
    several, turned = (replace(record, methods=tuple(methods)) for methods in ([method, *others], [*others, method]))
    assert decode(encode(several)) == several
    assert len({digest(value) for value in (record, several, turned)}) == 3


def test_a_lowered_program_has_the_models_that_it_was_made_of() -> None:
    assert LOWERED.quantized == QUANTIZED
    assert LOWERED.quantized.exported == EXPORTED


def test_an_operator_of_a_method_gets_the_methods_name_and_a_number_in_the_program() -> None:
    named = named_operator(replace(CONV, sources=(0, 2)), "decode", 5)
    assert (named.name, named.index, named.sources, named.method) == ("decode/conv", 5, (5, 7), "decode")
    assert named_operator(CONV, None, 0) == CONV
    assert in_method("conv", None) == "conv"
