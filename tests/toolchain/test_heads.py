"""What the HTP computes of heads that are normalised one by one, by the number of tokens and by the scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from tests.toolchain.small_models import device_snr_db, quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def snr_db(tokens: int, scheme: str, resources: Resources) -> float:
    ask = load([f"scheme={scheme}", "soc=SM8650", "measure.dump_operators=false"]).cells[0].request
    arguments = {"tokens": tokens}
    quantized = quantized_model(ask, resources, "heads_models", 1, samples=arguments, name="heads", arguments=arguments)
    return device_snr_db(ask, quantized, resources)


@pytest.mark.parametrize(
    ("tokens", "scheme", "is_right"),
    [(8, "fp16", True), (32, "fp16", False), (64, "fp16", False), (128, "fp16", True), (32, "16a8w", True)],
)
def test_heads_of_16_to_64_tokens_are_wrong_in_float16_only(
    tokens: int, scheme: str, is_right: bool, resources: Resources
) -> None:
    found = snr_db(tokens, scheme, resources)
    assert found > 30 if is_right else found < 10
