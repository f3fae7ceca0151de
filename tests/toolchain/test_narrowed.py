"""The best bits of the weights of a real program, against the model of the arithmetic with ExecuTorch's quantizer."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from qnnsweep.tasks.records import LoweredMethod, WeightBits
from qnnsweep.tasks.repair.allocation import choices_of
from qnnsweep.tasks.repair.prediction import LOWEST
from qnnsweep.tasks.repair.schemes import Selector, with_settings
from qnnsweep.tasks.toolchain import entrypoints

if TYPE_CHECKING:
    from qnnsweep.conf.schema import Request
    from qnnsweep.conf.schemes import SchemeConfig
    from qnnsweep.flows.cells.resources import Resources
    from qnnsweep.tasks.records import LoweredProgram

pytestmark = pytest.mark.toolchain


def test_no_other_bits_have_less_noise_when_the_quantizer_rounds_the_weights(
    resources: Resources, lowered: LoweredProgram, request_8a8w: Request
) -> None:
    (method,), scheme, store = lowered.methods, request_8a8w.scheme, resources.store
    weights = dict(choices_of(method, scheme))["other bits per weight"]
    most_bits = 6.0 * sum(choices.elements for choices in weights)
    best = resources.workers.call("cure", entrypoints.best_bits, method, weights, most_bits, store).value
    noise: dict[tuple[int, ...], float] = {}
    for bits in product((4, 8), repeat=len(weights)):
        if sum(number * choices.elements for number, choices in zip(bits, weights, strict=True)) <= most_bits:
            changed = _with_bits(method, scheme, bits)
            given = [method], None, scheme, changed, "qnn", request_8a8w.soc, LOWEST, math.inf, store
            of_samples, refused = resources.workers.call("cure", entrypoints.try_scheme, *given).value
            assert refused is None
            noise[bits] = sum(of_samples)
    assert len(noise) > 2
    found = tuple(row.element_bits for row in best)
    assert [row.operator for row in best] == [choices.operator for choices in weights]
    assert noise[found] <= 1.05 * min(noise.values()), "the quantizer's grids of values differ a little"


def test_no_weight_becomes_coarser_while_there_is_room_for_its_bits_and_nothing_to_gain(
    resources: Resources, lowered: LoweredProgram, request_8a8w: Request
) -> None:
    (_, weights), *_ = choices_of(lowered.methods[0], request_8a8w.scheme)
    now = [WeightBits(operator=choices.operator, element_bits=8) for choices in weights]
    most = 8.0 * sum(choices.elements for choices in weights)

    def found(most_bits: float) -> list[WeightBits]:
        given = lowered.methods[0], weights, most_bits, resources.store
        return resources.workers.call("cure", entrypoints.best_bits, *given).value

    assert found(most) == found(2 * most) == now
    assert sorted(row.element_bits for row in found(most - 1)) == [4, *[8] * (len(weights) - 1)], "one is enough"


def test_even_the_smallest_bits_can_be_too_many(
    resources: Resources, lowered: LoweredProgram, request_8a8w: Request
) -> None:
    (_, weights), *_ = choices_of(lowered.methods[0], request_8a8w.scheme)
    elements = sum(choices.elements for choices in weights)
    given = lowered.methods[0], weights, 3.9 * elements, resources.store
    assert resources.workers.call("cure", entrypoints.best_bits, *given).value == []


def test_a_weight_whose_floats_are_not_known_keeps_its_bits(
    resources: Resources, lowered: LoweredProgram, request_8a8w: Request
) -> None:
    (method,) = lowered.methods
    (_, weights), *_ = choices_of(method, request_8a8w.scheme)
    unknown = replace(method, quantized=replace(method.quantized, float_weights=None))
    given = unknown, weights, 1e9, resources.store
    assert resources.workers.call("cure", entrypoints.best_bits, *given).value == list[WeightBits]()


def _with_bits(method: LoweredMethod, scheme: SchemeConfig, bits: tuple[int, ...]) -> SchemeConfig:
    nodes = [method.operators[weight.readers[0]].source_nodes[-1] for weight in method.weights]
    changes = {
        Selector(node): {"quant_dtype": f"8a{number}w"} for node, number in zip(nodes, bits, strict=True) if number != 8
    }
    return with_settings(scheme, changes)
