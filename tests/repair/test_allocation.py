"""The numbers of bits that the weights may have, and how many they may have together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import LoweredMethod, LoweredProgram, Weight, WeightChoices
from qnnsweep.tasks.repair.allocation import choices_of, effective_bits, most_bits_of, most_weight_bits
from qnnsweep.tasks.repair.facts import operator_facts
from qnnsweep.tasks.repair.families import weight_settings
from tests.repair.sample_cells import CONVOLUTION, cell, operator, scheme
from tests.sample_records import with_method

DEQUANTIZE = "quantized_decomposed.dequantize_per_channel.default"


def lowered(*weights: Weight) -> LoweredProgram:
    """Return a program with a depthwise convolution (2), a linear layer (3), and other weights if given."""
    operators = [
        operator("w", DEQUANTIZE, None, shape=(8, 1, 3, 3), constant=True),
        operator("v", DEQUANTIZE, None, shape=(4, 8), constant=True),
        operator("conv", CONVOLUTION, sources=(0,)),
        operator("head", "aten.linear.default", sources=(1,)),
    ]
    return with_method(cell(operators, {})[1], weights=weights or (weight(2), weight(3, elements=300)))


def weight(*readers: int, elements: int = 100, element_bits: float | None = 8.0) -> Weight:
    return Weight(readers=readers, elements=elements, element_bits=element_bits)


def method(program: LoweredProgram) -> LoweredMethod:
    return program.methods[0]


def found(program: LoweredProgram, asked: SchemeConfig) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    return {
        change: [(choices.operator, choices.element_bits) for choices in weights]
        for change, weights in choices_of(method(program), asked)
    }


def test_all_weights_can_change_and_then_those_that_no_compiler_refuses() -> None:
    assert found(lowered(), scheme("16a8w")) == {
        "other bits per weight": [("conv", (4, 8, 16)), ("head", (4, 8, 16))],
        "other bits per weight without depthwise convolutions": [("head", (4, 8, 16))],
        "other bits per weight of linear layers alone": [("head", (4, 8, 16))],
        "other bits per weight, 8 at most,": [("conv", (4, 8)), ("head", (4, 8))],
        "other bits per weight, 8 at most, without depthwise convolutions": [("head", (4, 8))],
        "other bits per weight, 8 at most, of linear layers alone": [("head", (4, 8))],
    }
    assert found(lowered(), scheme("8a8w"))["other bits per weight"] == [("conv", (4, 8)), ("head", (4, 8))]


@pytest.mark.parametrize(
    ("weights", "asked"),
    [
        ((weight(2, 3),), scheme("8a8w")),
        ((weight(2, element_bits=None),), scheme("8a8w")),
        ((weight(2, element_bits=4.0),), scheme("8a8w", SchemeOverride(operator="conv2d", quant_dtype="8a4w"))),
        ((weight(2, element_bits=4.25),), scheme("16a4w_block")),
    ],
    ids=["two readers", "float", "a pattern's override", "blocks"],
)
def test_a_weight_whose_bits_no_override_can_choose_keeps_them(
    weights: tuple[Weight, ...], asked: SchemeConfig
) -> None:
    assert found(lowered(*weights), asked) == {}


def test_bits_of_an_override_are_those_now() -> None:
    asked = scheme("16a8w", SchemeOverride(node="node_head", quant_dtype="16a16w"))
    program = lowered(weight(2), weight(3, element_bits=16.0))
    (first, *_) = choices_of(method(program), asked)
    assert first[1][1] == WeightChoices(operator="head", elements=100, now=16, element_bits=(4, 8, 16))
    assert found(program, asked)["other bits per weight, 8 at most,"][1] == ("head", (4, 8, 16)), "it may stay as it is"


def test_the_target_limits_the_bits_of_all_weights_and_of_those_that_can_change() -> None:
    program = replace(lowered(), program=replace(lowered().program, size=10_000))
    (first, *_) = choices_of(method(program), scheme("8a8w"))
    assert effective_bits(program) == 8.0
    assert most_weight_bits(TargetConfig(), program) is None
    assert most_weight_bits(TargetConfig(effective_bits=6.0), program) == 6.0 * 400
    assert most_weight_bits(TargetConfig(size_kib=9), program) == 8 * 400 - 8 * (10_000 - 9 * 1024)
    both = TargetConfig(effective_bits=6.0, size_kib=9)
    assert most_weight_bits(both, program) == -3072, "the smaller limit counts; the weights are not that large"
    assert most_bits_of(TargetConfig(effective_bits=6.0), program, first[1][1:]) == 6.0 * 400 - 8 * 100


def test_a_program_without_weights_has_no_mean() -> None:
    assert effective_bits(with_method(lowered(), weights=())) is None


def test_16_bit_weights_fit_the_kernels_and_coarser_ones_need_nothing_of_it() -> None:
    comparison, program = cell([operator("w", DEQUANTIZE, None, constant=True), operator("conv", CONVOLUTION)], {})
    conv = operator_facts(comparison, program)["conv"]
    fine = SchemeOverride(node="node_conv", quant_dtype="16a16w", fit_weights=True)
    assert weight_settings(conv, scheme("16a8w"), "16a16w") == {
        "quant_dtype": "16a16w", "block_size": None, "fit_weights": True,
    }  # fmt: skip
    assert weight_settings(conv, scheme("16a8w", fine), "16a8w") == {
        "quant_dtype": None, "block_size": None, "fit_weights": None, "least_weight_scale": None,
    }  # fmt: skip


def test_a_norm_has_no_weights_to_fit() -> None:
    comparison, program = cell([operator("norm", "aten.native_layer_norm.default")], {})
    norm = operator_facts(comparison, program)["norm"]
    assert weight_settings(norm, scheme("16a8w"), "16a16w") == {"quant_dtype": "16a16w", "block_size": None}
