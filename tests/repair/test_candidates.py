"""The candidates for a cell, from sample records: additions before a softmax, convolutions, and a damaged scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.conf.overrides import settings
from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schemes import OverridePrecision, Precision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import Allocation, BiasUse, InputUse, Weight, WeightBits
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from tests.repair.sample_cells import ADD, BYTES, CONVOLUTION, RELU, WIDE, cell, operator, scheme
from tests.sample_records import with_method

FLOAT = {"precision": OverridePrecision.float16}
FINE = {"quant_dtype": "16a16w", "fit_weights": True}


def described(offered: Sequence[Candidate]) -> list[str]:
    return [candidate.description for candidate in offered]


def test_additions_with_a_mask_are_one_candidate_with_ranges_that_softmax_can_see() -> None:
    additions = [operator(f"add{number}", ADD, WIDE) for number in range(6)]
    uses = {"least_value": -5.0, "largest_value": 15.0, "range_used": 0.0003, "masked_by": ("softmax_1",)}
    budget: dict[tuple[Cause, str], float] = {("resolution", f"add{number}"): 0.15 for number in (2, 0, 1, 3, 4, 5)}
    comparison, lowered = cell(additions, budget, **{row.name: dict(uses) for row in additions})
    first = candidates(comparison, lowered, scheme("16a8w"))[1]
    named = "a narrower fixed range for 6 additions (layers.add2 and 5 more)"
    assert first.description == named, "the first operator of the budget is the first one in words"
    assert first.estimated_db == pytest.approx(10.0, abs=1e-3), "90 % of the error is removed"
    # The values with a tenth of their range as margin, and 20 more below: e^-20 is nothing to softmax.
    assert first.scheme == scheme(
        "16a8w", *(SchemeOverride(node=f"node_add{number}", range=[-27.0, 17.0]) for number in range(6))
    )


def test_a_range_without_a_softmax_behind_it_is_not_extended() -> None:
    comparison, lowered = cell(
        [operator("add", ADD, WIDE)], {("resolution", "add"): 0.9}, add={"least_value": 0.0, "largest_value": 10.0}
    )
    constant, first, *_ = candidates(comparison, lowered, scheme("16a8w"))
    assert first.scheme.overrides == [SchemeOverride(node="node_add", range=[0.0, 11.0])]
    both = SchemeOverride(node="node_add", range=[0.0, 11.0], constant_range=[0.0, 11.0])
    assert constant.scheme.overrides == [both], "the addition reads one value, so that its other addend is a constant"


def test_the_range_of_a_value_that_is_clipped_becomes_wider() -> None:
    uses = {"least_value": -1.0, "largest_value": 49.0, "clipped_elements": 7, "range_used": 2.0}
    comparison, lowered = cell([operator("conv", CONVOLUTION)], {("clipping", "conv"): 0.8}, conv=uses)
    first = candidates(comparison, lowered, scheme("8a8w"))[0]
    assert (first.cause, first.change) == ("clipping", "a wider fixed range")
    assert first.scheme.overrides == [SchemeOverride(node="node_conv", range=[-6.0, 54.0])]


def test_a_wider_range_keeps_the_end_that_clips_nothing() -> None:
    """The captured samples do not reach this end, but others may."""
    centred = replace(BYTES, zero_point=(128,))  # from -12.8 to 12.7
    uses = {"least_value": -3.0, "largest_value": 17.0, "clipped_elements": 7}
    comparison, lowered = cell([operator("conv", CONVOLUTION, centred)], {("clipping", "conv"): 0.8}, conv=uses)
    first = candidates(comparison, lowered, scheme("8a8w"))[0]
    assert first.scheme.overrides == [SchemeOverride(node="node_conv", range=[-12.8, 19.0])]


def test_damage_by_overrides_is_undone_and_nothing_else_is_changed() -> None:
    """Three layers: 4-bit weights, a range of half, and a range that is 40 times too wide."""
    coarse = replace(BYTES, scale=(10.0,))
    operators = [operator("a", CONVOLUTION), operator("b", CONVOLUTION), operator("c", ADD, coarse)]
    damage = [
        SchemeOverride(node="node_a", quant_dtype="8a4w"),
        SchemeOverride(node="node_b", range=[0.0, 12.0]),
        SchemeOverride(node="node_c", range=[0.0, 2550.0]),
    ]
    comparison, lowered = cell(
        operators,
        {("weights", "a"): 0.4, ("clipping", "b"): 0.3, ("resolution", "c"): 0.25},
        b={"least_value": 0.0, "largest_value": 24.0, "clipped_elements": 90},
        c={"least_value": 0.0, "largest_value": 64.0},
    )
    offered = candidates(comparison, lowered, scheme("8a8w", *damage))
    undone = {new.operators[0]: new for new in reversed(offered) if new.change.startswith("the ")}
    assert {name: candidate.change for name, candidate in undone.items()} == {
        "a": "the scheme's weights",
        "b": "the calibrated range",
        "c": "the calibrated range",
    }
    for name, others in (("a", damage[1:]), ("b", [damage[0], damage[2]]), ("c", damage[:2])):
        assert undone[name].scheme == scheme("8a8w", *others)


def test_16_bit_activations_need_the_readers_too() -> None:
    operators = [operator("conv", CONVOLUTION), operator("add", ADD, sources=(0,)), operator("last", ADD, sources=(1,))]
    comparison, lowered = cell(operators, {("resolution", "conv"): 0.9})
    offered = [new for new in candidates(comparison, lowered, scheme("8a8w")) if new.change == "16-bit activations"]
    assert [new.operators for new in offered] == [("conv",), ()], "and the whole model"
    assert offered[0].scheme.overrides == [
        SchemeOverride(node="node_conv", quant_dtype="16a8w"),
        SchemeOverride(node="node_add", quant_dtype="16a8w"),
    ]
    assert offered[0].estimated_db == pytest.approx(10.0, abs=0.01)
    assert (offered[1].description, offered[1].scheme.quant_dtype) == (
        "16-bit activations for the whole model",
        "16a8w",
    )


def test_a_convolution_before_a_clamp_can_have_the_grid_of_the_clamp() -> None:
    operators = [operator("conv", CONVOLUTION), operator("relu", RELU, sources=(0,))]
    comparison, lowered = cell(operators, {("resolution", "conv"): 0.9})
    changes = {new.change: new for new in candidates(comparison, lowered, scheme("8a8w"))}
    assert changes["the grid of the clamp"].scheme.overrides == [SchemeOverride(node="node_conv", share_clamp=True)]


@pytest.mark.parametrize(
    ("share", "change", "settings"),
    [
        (("weights", "conv"), "16-bit weights", ({"quant_dtype": "16a8w"}, FINE)),
        (("resolution", "conv"), "16-bit activations", ({"quant_dtype": "16a8w"}, {"quant_dtype": "16a8w"})),
        (("resolution", "relu"), "16-bit activations", ({"quant_dtype": "16a8w"}, {"quant_dtype": "16a8w"})),
        (("weights", "conv"), "16-bit float", (FLOAT, FLOAT)),
    ],
)
def test_an_operator_and_the_clamp_behind_it_get_the_same_bits_because_the_compiler_merges_them(
    share: tuple[Cause, str], change: str, settings: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    weight = operator("weight", "quantized_decomposed.dequantize_per_channel.default", None, constant=True)
    operators = [weight, operator("conv", CONVOLUTION, sources=(0,)), operator("relu", RELU, sources=(1,))]
    comparison, lowered = cell(operators, {share: 0.9})
    offers = candidates(comparison, lowered, scheme("8a8w"))
    (offered,) = (new for new in offers if new.change == change and new.operators)
    clamp, convolution = settings
    assert {override.node: override for override in offered.scheme.overrides} == {
        "node_relu": SchemeOverride(node="node_relu", **clamp),
        "node_conv": SchemeOverride(node="node_conv", **convolution),
    }


def test_the_range_with_the_least_error_comes_after_all_changes_whose_gain_is_known() -> None:
    uses = {"least_value": 0.0, "largest_value": 24.0}
    comparison, lowered = cell([operator("conv", CONVOLUTION)], {("resolution", "conv"): 0.9}, conv=uses)
    offered = candidates(comparison, lowered, scheme("8a8w"))
    assert offered[-1].description == "the range with the least error for the convolution layers.conv"
    override = SchemeOverride(node="node_conv", observer="HistogramObserver")
    assert offered[-1].scheme == scheme("8a8w", override)
    for fixed in (override, SchemeOverride(node="node_conv", range=[0.0, 25.5])):
        again = candidates(comparison, lowered, scheme("8a8w", fixed))
        assert all(new.change != offered[-1].change for new in again)


def test_values_that_few_samples_did_not_show_are_calibrated_with_all_samples() -> None:
    uses = {"least_value": 0.0, "largest_value": 49.0, "clipped_elements": 7}
    comparison, lowered = cell([operator("conv", CONVOLUTION)], {("clipping", "conv"): 0.9}, conv=uses)
    (method,) = lowered.methods
    exported = replace(method.exported, calibration_samples=32)
    lowered = with_method(lowered, quantized=replace(method.quantized, exported=exported))
    few = replace(scheme("8a8w"), calibration_samples=8)
    (more,) = (new for new in candidates(comparison, lowered, few) if "samples" in new.change)
    assert more.description == "32 calibration samples for the whole model"
    assert more.scheme == replace(few, calibration_samples=32)
    fixed = SchemeOverride(node="node_conv", range=[0.0, 25.5])
    for other in (scheme("8a8w"), replace(few, overrides=[fixed])):
        assert all("samples" not in new.change for new in candidates(comparison, lowered, other))


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("16a8w", {"16-bit weights": "16a16w", "8-bit activations": "8a8w"}),
        ("8a8w", {"16-bit activations": "16a8w", "16-bit weights": "16a16w"}),
        ("16a16w", {}),
    ],
)
def test_what_the_device_computes_wrongly_gets_other_bits_or_another_precision_and_last_the_cpu(
    dtype: str, bits: dict[str, str]
) -> None:
    weight = operator("weight", "quantized_decomposed.dequantize_per_channel.default", None, shape=(8,), constant=True)
    norm = operator("norm", "aten._native_batch_norm_legit_no_training.default", None, shape=None, sources=(0,))
    comparison, lowered = cell([weight, norm, operator("item", "getitem", sources=(1,))], {("device", "item"): 0.9})
    offered = candidates(comparison, lowered, scheme(dtype))
    changes = [candidate.change for candidate in offered if candidate.operators]
    assert sorted(changes) == sorted([*bits, "a depthwise convolution", "16-bit float", "the CPU"])
    assert changes[0] == "a depthwise convolution"
    assert changes[-1] == "the CPU"
    for candidate in offered:
        if candidate.change in bits and candidate.operators:
            (override,) = candidate.scheme.overrides
            assert (override.node, override.quant_dtype) == ("node_item", bits[candidate.change])
        if candidate.operators:
            assert (candidate.cause, candidate.device_share) == ("device", 0.9)
    assert offered[-1].scheme.overrides == [SchemeOverride(node="node_item", precision=OverridePrecision.cpu)]


def test_weights_with_more_bits_are_limited_by_the_size_of_the_program() -> None:
    weight = operator(
        "weight", "quantized_decomposed.dequantize_per_channel.default", None, shape=(500, 800), constant=True
    )
    operators = [weight, operator("conv", CONVOLUTION, sources=(0,))]
    comparison, lowered = cell(operators, {("weights", "conv"): 0.9})
    finer = "16-bit weights for the convolution layers.conv"
    assert finer in described(candidates(comparison, lowered, scheme("8a8w")))
    assert finer in described(candidates(comparison, lowered, scheme("8a8w"), most_bytes=400_000))
    assert finer not in described(candidates(comparison, lowered, scheme("8a8w"), most_bytes=399_999))


@pytest.mark.parametrize(
    ("shape", "block"),
    [((10, 512), [1, 16]), ((64, 32, 1, 1), [1, 16, 1, 1]), ((64, 32, 3, 3), None), ((10, 100), None)],
    ids=["linear", "1x1", "3x3, which the device computes wrongly", "not a multiple of the block"],
)
def test_weights_of_4_bits_can_have_one_scale_per_block(shape: tuple[int, ...], block: list[int] | None) -> None:
    name = "quantized_decomposed.dequantize_per_channel.default"
    operators = [
        operator("weight", name, None, shape=shape, constant=True),
        operator("conv", CONVOLUTION, sources=(0,)),
    ]
    comparison, lowered = cell(operators, {("weights", "conv"): 0.9})
    for dtype, is_offered in (("16a4w", block is not None), ("16a8w", False)):
        offered = [new for new in candidates(comparison, lowered, scheme(dtype)) if "per block" in new.change]
        override = SchemeOverride(node="node_conv", quant_dtype="16a4w_block", block_size=block)
        assert [new.scheme.overrides for new in offered] == [[override]] * is_offered
    # The weights of a program whose blocks do not suffice get 8 bits, and no blocks.
    blocked = scheme("16a4w", SchemeOverride(node="node_conv", quant_dtype="16a4w_block", block_size=[1, 16]))
    (finer,) = (new for new in candidates(comparison, lowered, blocked) if new.change == "8-bit weights")
    assert finer.scheme.overrides == [SchemeOverride(node="node_conv", quant_dtype="16a8w")]


def test_a_linear_layer_that_the_device_computes_differently_can_have_the_form_of_a_convolution() -> None:
    operators = [operator("head", "aten.linear.default", subgraph=0), operator("conv", CONVOLUTION, subgraph=0)]
    comparison, lowered = cell(operators, {("device", "head"): 0.5, ("device", "conv"): 0.4})
    (offered,) = (new for new in candidates(comparison, lowered, scheme("8a8w")) if "form" in new.change)
    assert (offered.description, offered.scheme.overrides) == (
        "the form of a convolution for the linear layer layers.head",
        [SchemeOverride(node="node_head", as_conv2d=True)],
    )


def test_16_bit_weights_have_steps_that_leave_room_for_the_bias() -> None:
    weight = operator(
        "weight", "quantized_decomposed.dequantize_per_channel.default", None, shape=(64, 8), constant=True
    )
    operators = [weight, operator("conv", CONVOLUTION, sources=(0,))]
    comparison, lowered = cell(operators, {("weights", "conv"): 0.9})
    use = BiasUse(operator_index=1, least_scale=0.001, least_scale_16=0.25)
    offered = candidates(replace(comparison, bias_uses=(use,)), lowered, scheme("8a8w"))
    (finer,) = (new for new in offered if new.change == "16-bit weights")
    settings = {"quant_dtype": "16a16w", "fit_weights": True, "least_weight_scale": 0.25}
    assert finer.scheme.overrides == [SchemeOverride(node="node_conv", **settings)]


def test_a_saturated_bias_gets_larger_steps_of_the_weights_or_one_scale_for_all_channels() -> None:
    weight = operator(
        "weight", "quantized_decomposed.dequantize_per_channel.default", None, shape=(64, 8), constant=True
    )
    operators = [weight, operator("conv", CONVOLUTION, sources=(0,))]
    comparison, lowered = cell(operators, {("bias", "conv"): 1.0})
    use = BiasUse(operator_index=1, least_scale=0.001, least_scale_16=0.25)
    offered = candidates(replace(comparison, bias_uses=(use,)), lowered, scheme("8a8w"))
    assert [(new.change, new.scheme.overrides) for new in offered] == [
        ("a larger least scale of the weights", [SchemeOverride(node="node_conv", least_weight_scale=0.001)]),
        ("one scale for the weights", [SchemeOverride(node="node_conv", per_channel=False)]),
    ]


def test_a_pool_that_has_the_grid_of_its_input_changes_with_it() -> None:
    operators = [operator("conv", CONVOLUTION), operator("pool", "aten.avg_pool2d.default", sources=(0,))]
    uses = {"least_value": 0.0, "largest_value": 49.0, "clipped_elements": 7}
    comparison, lowered = cell(operators, {("clipping", "conv"): 0.9}, conv=uses, pool=uses)
    first = candidates(comparison, lowered, scheme("8a8w"))[0]
    assert {override.node: override.range for override in first.scheme.overrides} == {
        "node_conv": [0.0, 53.9],
        "node_pool": [0.0, 53.9],
    }


def test_a_clipped_input_gets_a_range_together_with_the_values_that_are_clipped_behind_it() -> None:
    uses = {"least_value": -1.0, "largest_value": 49.0, "clipped_elements": 7}
    shares: dict[tuple[Cause, str], float] = {("clipping", "image"): 0.4, ("clipping", "conv"): 0.55}
    comparison, lowered = cell([operator("conv", CONVOLUTION)], shares, conv=uses)
    image = InputUse(input="image", least=0.0, largest=200.0, clipped_elements=3)
    comparison = replace(comparison, input_uses=(image,))
    first, alone, *_ = candidates(comparison, lowered, scheme("8a8w"))
    assert first.description == "a wider fixed range for the convolution layers.conv and the input image"
    assert first.estimated_db == pytest.approx(-10 * math.log10(0.05))
    of_image = SchemeOverride(input="image", range=[-1.5, 220.0])
    assert first.scheme.overrides == [SchemeOverride(node="node_conv", range=[-6.0, 54.0]), of_image]
    assert alone.operators == ("conv",)
    within = replace(comparison, input_uses=(replace(image, largest=100.0, clipped_elements=0),))
    assert of_image not in candidates(within, lowered, scheme("8a8w"))[0].scheme.overrides
    again = candidates(comparison, lowered, scheme("8a8w", of_image))
    assert ("the calibrated range for the input image", []) in [
        (candidate.description, candidate.scheme.overrides) for candidate in again
    ]


def test_operators_behind_a_clipped_value_that_clip_nothing_yet_get_a_range_too() -> None:
    """The normalised input fits its grid on the device only because the input itself is clipped."""
    operators = [operator("sub", "aten.sub.Tensor"), operator("conv", CONVOLUTION)]
    fits, does_not = {"least_value": 0.0, "largest_value": 25.0}, {"least_value": 0.0, "largest_value": 40.0}
    comparison, lowered = cell(operators, {("clipping", "image"): 0.9}, sub=does_not, conv=fits)
    image = InputUse(input="image", least=0.0, largest=200.0, clipped_elements=3)
    first = candidates(replace(comparison, input_uses=(image,)), lowered, scheme("8a8w"))[0]
    assert first.description == "a wider fixed range for the input image"
    assert first.scheme.overrides == [
        SchemeOverride(input="image", range=[-1.5, 220.0]),
        SchemeOverride(node="node_sub", range=[0.0, 44.0]),
    ]


def test_operators_of_one_node_get_their_own_ranges_if_their_types_differ_and_else_the_range_of_all() -> None:
    centred = replace(BYTES, zero_point=(128,))  # from -12.8 to 12.7
    operators = [
        operator("gate", "aten.sigmoid.default", BYTES, source_nodes=("silu",)),
        operator("product", "aten.mul.Tensor", BYTES, source_nodes=("silu",)),
        operator("cut", "aten.slice_copy.Tensor", centred, source_nodes=("chunk",)),
        operator("other", "aten.slice_copy.Tensor", centred, source_nodes=("chunk",)),
    ]
    uses = {"least_value": 0.0, "largest_value": 40.0, "clipped_elements": 7}
    below = {"least_value": -20.0, "largest_value": 0.0, "clipped_elements": 7}
    shares: dict[tuple[Cause, str], float] = {("clipping", row.name): 0.2 for row in operators}
    comparison, lowered = cell(operators, shares, gate=uses, product=below, cut=uses, other=below)
    first = max(candidates(comparison, lowered, scheme("8a8w")), key=lambda candidate: len(candidate.operators))
    assert first.change == "a wider fixed range"
    assert {(new.node, new.operator): new.range for new in first.scheme.overrides} == {
        ("silu", "sigmoid"): [0.0, 44.0],
        ("silu", "mul"): [-22.0, 25.5],
        ("chunk", None): [-22.0, 44.0],
    }


def test_an_operator_that_a_pass_inserted_cannot_be_selected_and_gets_no_range() -> None:
    operators = [operator("conv", CONVOLUTION), operator("pad", "aten.constant_pad_nd.default", source_nodes=("pad",))]
    uses = {"least_value": 0.0, "largest_value": 40.0, "clipped_elements": 7}
    comparison, lowered = cell(operators, {("clipping", "conv"): 0.9}, conv=uses, pad=uses)
    first = candidates(comparison, lowered, scheme("8a8w"))[0]
    assert first.scheme.overrides == [SchemeOverride(node="node_conv", range=[0.0, 44.0])]


def test_an_input_gets_a_range_and_no_other_setting() -> None:
    causes: tuple[Cause, ...] = ("clipping", "resolution", "device", "weights", "bias")
    for cause in causes:
        comparison, lowered = cell([operator("conv", CONVOLUTION)], {(cause, "image"): 0.9})
        image = InputUse(input="image", least=0.0, largest=0.5, clipped_elements=1)
        comparison = replace(comparison, input_uses=(image,))
        for dtype in ("8a8w", "16a8w", "8a4w"):
            for candidate in candidates(comparison, lowered, scheme(dtype)):
                assert {name for override in candidate.scheme.overrides for name in settings(override)} <= {"range"}


def test_most_gain_per_cost_comes_first_and_a_float_scheme_has_no_candidates() -> None:
    operators = [operator("a", ADD, WIDE), operator("conv", CONVOLUTION)]
    uses = {"least_value": 0.0, "largest_value": 1.0}
    comparison, lowered = cell(operators, {("resolution", "a"): 0.6, ("weights", "conv"): 0.2}, a=uses)
    offered = candidates(comparison, lowered, scheme("8a8w"))
    assert [new.estimated_db / new.cost for new in offered] == sorted(
        (n.estimated_db / n.cost for n in offered), reverse=True
    )
    assert offered[0].operators == ("a",)
    assert candidates(comparison, lowered, SchemeConfig(name="fp16", precision=Precision.float16)) == []


def of_bits(target: TargetConfig, dtype: str, **bits: int) -> list[Candidate]:
    """Return the candidates with other bits per weight, for an allocation to a convolution and a linear layer."""
    operators = [operator("conv", CONVOLUTION), operator("head", "aten.linear.default")]
    comparison, lowered = cell(operators, {("weights", "conv"): 0.5, ("weights", "head"): 0.001})
    weights = tuple(Weight(readers=(reader,), elements=1000, element_bits=8.0) for reader in range(2))
    found = Allocation(
        change="other bits per weight",
        bits=tuple(WeightBits(operator=name, element_bits=number) for name, number in bits.items()),
    )
    offered = candidates(comparison, with_method(lowered, weights=weights), scheme(dtype), target, [found])
    return [new for new in offered if new.change == "other bits per weight"]


def test_other_bits_come_first_in_a_program_that_is_too_large() -> None:
    (found,) = of_bits(TargetConfig(effective_bits=6.0), "8a8w", conv=8, head=4)
    assert (found.is_needed, found.operators) == (True, ("head",))
    assert found.scheme.overrides == [SchemeOverride(node="node_head", quant_dtype="8a4w")]
    assert found.description == "other bits per weight for the linear layer layers.head"
    offered = of_bits(TargetConfig(effective_bits=12.0), "16a8w", conv=16, head=4)
    assert [(new.is_needed, len(new.scheme.overrides)) for new in offered] == [(False, 2)]


def test_an_allocation_that_changes_nothing_is_no_candidate() -> None:
    assert of_bits(TargetConfig(effective_bits=8.0), "8a8w", conv=8, head=8) == []


def test_a_program_that_is_too_large_gets_no_larger_weights() -> None:
    weight = operator("w", "quantized_decomposed.dequantize_per_channel.default", None, shape=(64, 8), constant=True)
    comparison, lowered = cell([weight, operator("conv", CONVOLUTION, sources=(0,))], {("weights", "conv"): 0.9})
    lowered = with_method(lowered, weights=(Weight(readers=(1,), elements=512, element_bits=8.0),))
    for bits, has_finer in ((8.0, False), (16.0, True)):
        offered = described(candidates(comparison, lowered, scheme("16a8w"), TargetConfig(effective_bits=bits)))
        assert any(text.startswith("16-bit weights") for text in offered) is has_finer
