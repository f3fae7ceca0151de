"""benchmarks/pairs.py: that its cuts are what they are called, on the smallest quantized cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load

from qnnsweep.tasks.records import Blob, LoweredProgram

import pair_ablation  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def ablation(resources: Resources, lowered: LoweredProgram) -> dict[str, Any]:
    return resources.workers.call("ablate", pair_ablation.ablate, lowered.quantized, resources.store).value


def same(resources: Resources, first: Blob, second: Blob) -> bool:
    left, right = load(resources.store.read(first)), load(resources.store.read(second))
    return sorted(left) == sorted(right) and all(np.array_equal(left[key], right[key]) for key in left)


def test_every_pair_has_one_kind_and_those_before_a_clamp_are_the_fused_ones(ablation: dict[str, Any]) -> None:
    assert ablation["counts"] == {
        "placeholder > conv2d": 1,
        "conv2d > relu": 2,
        "relu > conv2d": 1,
        "relu > max_pool2d": 1,
        "max_pool2d > flatten": 1,
        "flatten > linear": 1,
        "linear > output": 1,
    }
    assert sorted(ablation["fused"]) == ["features.0", "features.3"]
    assert all(64 < levels < 256 for levels in ablation["fused"].values())


def test_the_edge_rung_is_the_converted_graph_without_any_pair(
    ablation: dict[str, Any], lowered: LoweredProgram, resources: Resources
) -> None:
    assert same(resources, ablation["outputs"]["without any pair"], lowered.methods[0].outputs_edge)
    assert not same(resources, ablation["outputs"]["converted"], lowered.methods[0].outputs_edge)


def test_a_pair_is_its_saturation_and_its_rounding(ablation: dict[str, Any]) -> None:
    graphs = ablation["graphs"]
    assert graphs["fused pairs round only"] == graphs["converted"] != graphs["without fused pairs"]
    assert graphs["fused pairs saturate only"] == graphs["without fused pairs"]


def test_folding_batch_norms_is_no_error_and_float_parameters_are_a_smaller_one(ablation: dict[str, Any]) -> None:
    graphs = ablation["graphs"]
    assert all(score is None or score > 100 for score in graphs["exported"] + graphs["batch norms folded"])
    assert np.median(graphs["float weights"]) > np.median(graphs["converted"])


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("fusion prevented", "converted"),
        ("clamp's grid", "without fused pairs"),
        ("saturated biases halved", "converted"),
    ],
)
def test_on_the_host_a_variant_answers_like_the_graph_it_stands_for(
    name: str, like: str, ablation: dict[str, Any], lowered: LoweredProgram, resources: Resources
) -> None:
    changed = resources.workers.call("variant", pair_ablation.variant, lowered.quantized, name, resources.store).value
    assert same(resources, changed.methods[0].outputs_quantized, ablation["outputs"][like])
