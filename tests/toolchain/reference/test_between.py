"""The derivatives of runs between the float model's and the device's. All of it runs in a worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import call_graphs  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def in_worker(resources: Resources, function: Any, *arguments: Any) -> Any:
    return resources.workers.call("compare", function, *arguments).value


def test_gradients_are_those_at_the_run_with_half_of_the_error(resources: Resources) -> None:
    np.testing.assert_allclose(in_worker(resources, call_graphs.gradient), 2 * (2 * call_graphs.X + 0.25))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("aten.heaviside.default", {"input": 0}), "an operator has no derivative: "),
        (("nolib.foo.default",), "nolib.foo.default is not registered on this host"),
        (
            ("quantized_decomposed.quantize_per_tensor.default", {"float": "0.05"}, 0, -128, 127, {"dtype": "int8"}),
            "the edge graph rounds activations itself (quantized_decomposed.quantize_per_tensor.default)",
        ),
    ],
)
def test_a_graph_without_derivatives_has_a_reason(resources: Resources, call: tuple[Any, ...], reason: str) -> None:
    assert in_worker(resources, call_graphs.reason_against, *call).startswith(reason)


def test_a_constant_that_the_host_cannot_compute_has_no_value_and_its_readers_have_a_reason(
    resources: Resources,
) -> None:
    changed, values, refusals = in_worker(resources, call_graphs.with_unknown_constant)
    assert (changed, values) == ([0], (None, None))
    assert refusals == {
        1: "nolib.foo.default is not registered on this host",
        2: "reads operator 1, which has no value",
    }


def test_kernels_on_other_inputs_share_the_constants_and_have_refusals_of_their_own(resources: Resources) -> None:
    (first, second, again), refusals, is_shared = in_worker(resources, call_graphs.on_other_inputs)
    assert first.tolist() == [[1.0, -2.0, 4.0, 2.5], [2.0, 0.25, 0.0, 6.0]]
    assert second.tolist() == [[-1.0, 2.0, -2.0, 1.5], [-2.0, -0.25, 2.0, -2.0]]
    assert again.tolist() == first.tolist()
    assert (refusals[0], [*refusals[1]], is_shared) == ({}, [1], True)


def test_an_index_that_does_not_exist_is_the_reason_for_a_missing_result(resources: Resources) -> None:
    operators, refusals = in_worker(resources, call_graphs.with_index_out_of_range)
    assert operators == [0]
    assert refusals == {1: "aten.embedding.default: index out of range in self"}


def test_a_mask_of_infinities_has_no_error(resources: Resources) -> None:
    finite = in_worker(resources, call_graphs.errors_under_a_mask_of_infinities)
    assert len(finite) == 3
    assert all(finite)
