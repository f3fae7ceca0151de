"""Damage to a real capture, operator by operator: the comparison names the damaged operator and no other."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Capture, LoweredProgram

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

import injection  # isort: skip
import operator_errors  # isort: skip

pytestmark = pytest.mark.toolchain

FEW = 30
"""A value with fewer elements cannot be found to be biased by one step."""


@pytest.fixture(scope="module")
def injections(
    request_8a8w: Request, resources: Resources, lowered: LoweredProgram, capture: Capture
) -> list[injection.Injection]:
    (program,), (captured,) = lowered.methods, capture.methods
    work = (
        program,
        captured,
        of_scheme(request_8a8w.tolerance.operators, "8a8w"),
        tuple(operator_errors.KINDS),
        30,
        resources.store,
    )
    damaged, examined = resources.workers.call("compare", injection.inject, *work).value
    assert min(examined.values()) >= 5
    return damaged


def test_whatever_is_done_to_an_operator_it_is_the_one_that_is_named(
    lowered: LoweredProgram, injections: list[injection.Injection]
) -> None:
    few = {operator.name for operator in lowered.methods[0].operators if math.prod(operator.shape or ()) < FEW}
    too_few = [injected for injected in injections if injected.kind == "one_step_off" and injected.operator in few]
    assert [injected for injected in injections if not injected.named and injected not in too_few] == []
    assert len(too_few) == 1  # the last operator, which has ten elements
    assert [injected for injected in injections if injected.blamed or injected.biased or injected.contradicted] == []


def test_every_kind_that_the_model_allows_has_operators(injections: list[injection.Injection]) -> None:
    operators = Counter(injected.kind for injected in injections)
    # No operator of digits_cnn has a channel of outliers, and none of its logged values are booleans or indices.
    assert set(operator_errors.KINDS) - set(operators) == {"channel_dead", "inverted", "indices_shuffled"}
    assert operators["scaled"] >= 5
    assert operators["weights_in_4_bits"] >= 3


def test_a_verdict_names_damage_by_the_device_and_damage_to_a_grid(injections: list[injection.Injection]) -> None:
    plain = [injected for injected in injections if injected.snr_db is not None and injected.snr_db < 15]
    verdicts = {
        cause: {injected.verdict for injected in plain if operator_errors.KINDS[injected.kind].cause == cause}
        for cause in ("device", "clipping", "resolution")
    }
    assert verdicts["device"] == {"introduced"}
    assert verdicts["clipping"] | verdicts["resolution"] == {"grid"}
