"""New settings of single nodes in a scheme."""

from __future__ import annotations

import pytest

from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.repair.schemes import Conflict, Selector, setting, with_settings


def scheme(*overrides: SchemeOverride) -> SchemeConfig:
    return SchemeConfig(name="8a8w", quant_dtype="8a8w", overrides=list(overrides))


def test_settings_of_a_node_are_added_to_those_that_it_has() -> None:
    before = scheme(SchemeOverride(node="conv", symmetric=True), SchemeOverride(node="add", per_channel=False))
    after = with_settings(
        before, {Selector("conv"): {"range": [-1.0, 1.0]}, Selector("linear"): {"quant_dtype": "16a8w"}}
    )
    assert after == scheme(
        SchemeOverride(node="conv", symmetric=True, range=[-1.0, 1.0]),
        SchemeOverride(node="add", per_channel=False),
        SchemeOverride(node="linear", quant_dtype="16a8w"),
    )
    assert before.overrides[0] == SchemeOverride(node="conv", symmetric=True), "the scheme itself is not changed"


def test_an_override_without_settings_is_removed() -> None:
    damaged = scheme(SchemeOverride(node="conv", range=[-1.0, 1.0]), SchemeOverride(node="add", range=[-2.0, 2.0]))
    assert with_settings(damaged, {Selector("conv"): {"range": None}}) == scheme(
        SchemeOverride(node="add", range=[-2.0, 2.0])
    )


def test_the_range_of_an_input_is_an_override_of_its_own() -> None:
    image, method = Selector("image", "input"), SchemeOverride(method="decode", range=[-2.0, 2.0])
    before = scheme(SchemeOverride(node="image", range=[-1.0, 1.0]), method)
    after = with_settings(before, {image: {"range": [-3.0, 3.0]}})
    assert after.overrides == [*before.overrides, SchemeOverride(input="image", range=[-3.0, 3.0])]
    assert setting(after, image, "range") == [-3.0, 3.0]
    assert setting(before, image, "range") is None
    assert with_settings(after, {image: {"range": None}}) == before
    with pytest.raises(Conflict):
        with_settings(scheme(SchemeOverride(input="ima*", range=[-1.0, 1.0])), {image: {"range": None}})


def test_two_operators_of_one_node_have_settings_of_their_own() -> None:
    gate, product = Selector("silu", operator="sigmoid"), Selector("silu", operator="mul")
    after = with_settings(scheme(), {gate: {"range": [0.0, 1.0]}, product: {"range": [-1.0, 9.0]}})
    assert after.overrides == [
        SchemeOverride(node="silu", operator="sigmoid", range=[0.0, 1.0]),
        SchemeOverride(node="silu", operator="mul", range=[-1.0, 9.0]),
    ]
    assert setting(after, product, "range") == [-1.0, 9.0]
    assert with_settings(after, {product: {"range": None}}).overrides == after.overrides[:1]
    with pytest.raises(Conflict):
        with_settings(after, {Selector("silu"): {"range": [0.0, 2.0]}})


@pytest.mark.parametrize(
    "other",
    [
        SchemeOverride(node="conv*", range=[-1.0, 1.0]),
        SchemeOverride(operator="conv2d", range=[-1.0, 1.0]),
        SchemeOverride(node="conv", module="features.*", range=[-1.0, 1.0]),
    ],
)
def test_a_setting_that_a_pattern_has_already_is_a_conflict(other: SchemeOverride) -> None:
    with pytest.raises(Conflict):
        with_settings(scheme(other), {Selector("conv"): {"range": None}})
    assert with_settings(scheme(other), {Selector("conv"): {"symmetric": True}}).overrides[1:] == [
        SchemeOverride(node="conv", symmetric=True)
    ]


def test_the_setting_of_a_node_is_that_of_its_override() -> None:
    cpu = scheme(
        SchemeOverride(node="conv", precision=OverridePrecision.cpu), SchemeOverride(operator="add", range=[0, 1])
    )
    assert setting(cpu, Selector("conv"), "precision") is OverridePrecision.cpu
    assert setting(cpu, Selector("conv"), "range") is None
    assert setting(cpu, Selector("add"), "range") is None
