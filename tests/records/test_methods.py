"""The records of programs with several methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.tasks.records import CaptureMethods, ExportedMethods, LoweredMethods, QuantizedMethods
from qnnsweep.tasks.records.methods import for_each_method, in_method, methods_of, named_operator, of_methods
from qnnsweep.tasks.storage.codec import decode, encode
from qnnsweep.tasks.storage.digest import digest
from tests.sample_records import CAPTURE, CONV, EXPORTED, LOWERED, QUANTIZED, blob

OF_SEVERAL: list[tuple[Any, type[Any], str]] = [
    (EXPORTED, ExportedMethods, "program"),
    (QUANTIZED, QuantizedMethods, "program"),
    (LOWERED, LoweredMethods, "program"),
    (CAPTURE, CaptureMethods, "outputs"),
]


@pytest.mark.parametrize("record", [record for record, _, _ in OF_SEVERAL], ids=lambda record: type(record).__name__)
def test_the_record_of_an_only_method_is_that_of_the_base_class(record: Any) -> None:
    assert of_methods([record]) is record
    assert methods_of(record) == (record,)


@pytest.mark.parametrize(("record", "kind", "field"), OF_SEVERAL, ids=lambda value: getattr(value, "__name__", ""))
def test_the_records_of_several_methods_are_stored_and_read_back_in_their_order(
    record: Any, kind: type[Any], field: str
) -> None:
    others = [replace(record, **{field: blob(letter)}) for letter in "de"]
    several = of_methods([record, *others])
    assert type(several) is kind
    assert methods_of(several) == (record, *others)
    assert decode(encode(several)) == several
    assert len({digest(value) for value in (record, several, of_methods([*others, record]))}) == 3


def test_a_change_is_applied_to_the_record_of_every_method() -> None:
    several = of_methods([EXPORTED, replace(EXPORTED, method="decode")])
    changed = for_each_method(several, lambda method: replace(method, calibration_samples=0))
    assert [(method.method, method.calibration_samples) for method in methods_of(changed)] == [(None, 0), ("decode", 0)]


def test_an_operator_of_a_method_gets_the_methods_name_and_a_number_in_the_program() -> None:
    named = named_operator(replace(CONV, sources=(0, 2)), "decode", 5)
    assert (named.name, named.index, named.sources, named.method) == ("decode/conv", 5, (5, 7), "decode")
    assert named_operator(CONV, None, 0) == CONV
    assert in_method("conv", None) == "conv"
