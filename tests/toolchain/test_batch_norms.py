"""Batch norms that torchao would fold wrongly into the layer before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("residual, without a bias", 1),
        ("linear", 1),
        ("planes", 2),
        ("volumes", 1),
        ("one weight, one of two calls", 1),
        ("one weight, other batch norms", 2),
        ("one weight, one batch norm, without a bias", 2),
        ("two batch norms", 1),
        ("two batch norms, both read", 3),
        ("tied weight", 1),
        ("transposed in groups", 1),
    ],
)
def test_a_batch_norm_that_torchao_would_fold_wrongly_is_a_convolution_of_its_own(
    resources: Resources, kind: str, written: int
) -> None:
    from tests.toolchain.batch_norm_models import prepared_with_and_without

    ours, theirs, count = resources.workers.call("quantize", prepared_with_and_without, kind).value
    assert ours < 1e-5
    assert theirs > 0.01, "torchao has no such error any more"
    assert count == written


@pytest.mark.parametrize("kind", ["folded", "one weight, one batch norm"])
def test_a_batch_norm_that_torchao_folds_rightly_is_folded(resources: Resources, kind: str) -> None:
    from tests.toolchain.batch_norm_models import prepared_with_and_without

    ours, theirs, count = resources.workers.call("quantize", prepared_with_and_without, kind).value
    assert ours == theirs < 1e-5
    assert count == 0
