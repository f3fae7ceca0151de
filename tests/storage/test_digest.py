"""Digests, on which cache keys depend, are equal for equal values on every machine, and for no others."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.records import Blob, ExportedMethod, ExportedModel, ModelFacts, StageCall
from qnnsweep.tasks.storage.digest import digest

LOG = Blob(sha256="c" * 64, size=3)
METHOD = ExportedMethod(
    program=Blob(sha256="a" * 64, size=1),
    inputs=(),
    outputs=(),
    calibration=None,
    calibration_samples=0,
    evaluation=Blob(sha256="b" * 64, size=2),
    sample_names=("0",),
    labels=(None,),
    outputs_eager=Blob(sha256="d" * 64, size=4),
    outputs_exported=Blob(sha256="e" * 64, size=5),
    input_mistakes=(),
    mistaken_outputs=Blob(sha256="d" * 64, size=4),
)
EXPORTED = ExportedModel(
    model=ModelFacts(name="toy", weights="random"),
    methods=(METHOD,),
    made=(StageCall(stage="export", seconds=1.5, log=LOG),),
)

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=10
)


def typed(value: Any) -> Any:
    """Return `value` in a form in which 1, 1.0 and True, and 0.0 and -0.0, are unequal."""
    if isinstance(value, list):
        return ("list", tuple(typed(item) for item in value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, typed(item)) for key, item in value.items()))
    return (type(value).__name__, repr(value))


@given(values, values)
def test_digests_are_equal_exactly_when_the_values_are(value: Any, other: Any) -> None:
    assert (digest(value) == digest(other)) == (typed(value) == typed(other))


@given(st.dictionaries(st.text(), plain))
def test_the_order_of_a_dict_is_ignored(entries: dict[str, Any]) -> None:
    assert digest(dict(reversed(entries.items()))) == digest(entries)


@given(st.lists(values))
def test_a_list_equals_a_tuple(items: list[Any]) -> None:
    assert digest(items) == digest(tuple(items))


def test_similar_values_have_different_digests() -> None:
    alike = [
        1,
        1.0,
        True,
        "1",
        [1],
        {"1": 1},
        {1: 1},
        0,
        0.0,
        -0.0,
        False,
        None,
        "None",
        "",
        [],
        {},
        [None],
        {"float": "1.0"},
        {"enum": ["Precision", "float32"]},
        [["a", 1]],
        {"a": 1},
        Precision.float32,
        "float32",
    ]
    assert len({digest(value) for value in alike}) == len(alike)


def test_an_enum_that_is_a_string_is_not_its_string() -> None:
    class Unit(str, Enum):  # noqa: UP042  StrEnum would hide that this is about any mixed-in type
        cycles = "cycles"

    assert digest(Unit.cycles) != digest("cycles")


def test_the_type_of_a_record_is_part_of_it() -> None:
    @dataclass
    class One:
        name: str

    @dataclass
    class Other:
        name: str

    assert digest(One("a")) != digest(Other("a"))


def test_every_field_of_a_configuration_changes_the_digest() -> None:
    scheme = SchemeConfig(name="8a8w", quant_dtype="8a8w")
    assert digest(scheme) == digest(SchemeConfig(name="8a8w", quant_dtype="8a8w"))
    assert digest(scheme) != digest(SchemeConfig(name="8a8w", quant_dtype="8a8w", precision=Precision.float16))


def test_logs_and_seconds_are_ignored_at_any_depth() -> None:
    slower = replace(EXPORTED, made=(StageCall(stage="export", seconds=99.0),))
    assert digest(slower) == digest(EXPORTED)
    assert digest([{"m": (slower,)}]) == digest([{"m": (EXPORTED,)}])
    trained = replace(EXPORTED, model=replace(EXPORTED.model, name="another", weights="trained"))
    assert digest(trained) != digest(EXPORTED)
    assert digest(replace(trained, model=replace(trained.model, weights="random"))) == digest(EXPORTED)


def test_a_field_that_is_not_part_of_the_identity_needs_no_digest() -> None:
    assert digest(replace(EXPORTED, made=(StageCall(stage="export", seconds=math.nan),))) == digest(EXPORTED)


def test_a_numpy_float_has_the_digest_of_the_float() -> None:
    assert digest(np.float64(0.1)) == digest(0.1)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match=r"^value\['a'\]\[1\] is -?(nan|inf): a digest needs finite numbers$"):
        digest({"a": [0.0, number]})


@pytest.mark.parametrize("value", [{1}, frozenset(), b"", Path("a"), object(), 1j, np.int64(1), Blob])
def test_a_type_without_a_digest_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=rf"^value\[0\] is a {type(value).__qualname__} and has no digest"):
        digest([value])


def test_digests_are_the_same_in_every_process() -> None:
    program = (
        "from qnnsweep.conf.schema import SchemeConfig; from qnnsweep.tasks.storage.digest import digest;"
        "print(digest([SchemeConfig(name='fp16'), {'b': 1.5, 'a': (True, None, 'µ', 1)}]))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {digest([SchemeConfig(name="fp16"), {"a": (True, None, "µ", 1), "b": 1.5}])}


def test_digests_are_the_same_in_every_version() -> None:
    # A change of this digest invalidates every cached result of every user.
    value = [Blob(sha256="ab", size=1), Precision.float16, {"b": 1.5, "a": (True, None, "µ", 1)}]
    canonical = (
        '[{"record":["Blob",[["sha256","ab"],["size",1]]]},{"enum":["Precision","float16"]},'
        '{"dict":[["a",[true,null,"µ",1]],["b",{"float":"1.5"}]]}]'
    )
    assert digest(value) == hashlib.sha256(canonical.encode()).hexdigest()
