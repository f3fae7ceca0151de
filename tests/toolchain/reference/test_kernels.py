"""The reference's operators as functions of NumPy arrays, and their derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import graphs  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

X = np.array([-4, 2, 30, 1], np.float32)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
ONES = np.ones(4, np.float32)


def asked(resources: Resources, function: Any, *arguments: Any) -> Any:
    return resources.workers.call("compare", function, *arguments).value


def plain(value: Any) -> Any:
    return tuple(map(plain, value)) if isinstance(value, tuple) else (value.dtype.name, value.tolist())


def test_every_operator_is_made_again_from_the_values_of_those_it_reads(resources: Resources) -> None:
    values, answers, refusals = asked(resources, graphs.run, "relu6", [X])
    # The weight times the input, the clamp, the 1 of the sum, the sum.
    assert [plain(value) for value in values] == [
        ("float32", [-4, -4, 15, 0]),
        ("float32", [0, 0, 6, 0]),
        ("float32", 1),
        ("float32", [1, 1, 7, 1]),
    ]
    assert ([plain(answer) for answer in answers], refusals) == ([("float32", [1, 1, 7, 1])], {})


def test_tuples_and_integers_come_as_they_are(resources: Resources) -> None:
    values, answers, _ = asked(resources, graphs.run, "topk", [X])
    assert [plain(value) for value in values] == [(("float32", [30, 2]), ("int64", [2, 1])), ("int64", [2, 1])]
    assert [plain(answer) for answer in answers] == [("int64", [2, 1])]


def test_several_outputs_of_several_types_come_in_the_models_order(resources: Resources) -> None:
    _, answers, _ = asked(resources, graphs.run, "heads", [X])
    assert [plain(answer) for answer in answers] == [
        ("float32", [[-3, 31], [3, 2]]),
        ("bool", [False, True, True, True]),
        ("int64", [-4, 2, 30, 1]),
    ]


def test_a_graphs_facts_are_what_readers_ask_for(resources: Resources) -> None:
    assert asked(resources, graphs.facts, "split", [X]) == {
        "targets": ["_to_dim_order_copy", "mul", "split_with_sizes_copy", "getitem", "_to_dim_order_copy", "mul"],
        "sources": [(), (0,), (1,), (2,), (), (3, 4)],
        "outputs": ["mul"],
        "constants": ["_to_dim_order_copy", "_to_dim_order_copy"],
        "data_movement_ops": ["_to_dim_order_copy", "split_with_sizes_copy", "getitem", "_to_dim_order_copy"],
        "linear": ["mul", "mul"],
        "getitem_index": {"getitem": 1},
    }


def test_a_derivative_is_zero_where_a_clamp_is_flat(resources: Resources) -> None:
    inside = np.array([-1, 0.5, 5, 7], np.float32)
    slope = asked(resources, graphs.gradient, "relu6", [X], 1, 0, inside, [ONES * 2])
    assert slope.tolist() == [0, 2, 2, 0]


def test_a_derivative_counts_each_output_by_its_weight_and_has_no_sign(resources: Resources) -> None:
    weights = np.array([-1, 0, 2, -3], np.float32)
    slope = asked(resources, graphs.gradient, "relu6", [X], 3, 1, ONES, [weights])
    assert slope.tolist() == [1, 0, 2, 3]


def test_a_derivative_that_is_equal_for_all_elements_has_no_sign(resources: Resources) -> None:
    targets = asked(resources, graphs.facts, "sum", [X])["targets"]
    index, source = targets.index("sum"), targets.index("mul")
    slope = asked(resources, graphs.gradient, "sum", [X], index, source, X, [-ONES[:1]])
    assert slope.tolist() == [1, 1, 1, 1]


def test_of_a_tuple_only_what_somebody_reads_counts(resources: Resources) -> None:
    some = asked(resources, graphs.gradient, "split", [X], 2, 1, X, [None, ONES[:2]])
    assert some.tolist() == [0, 0, 1, 1]
    both = asked(resources, graphs.gradient, "split", [X], 2, 1, X, [ONES[:2] * 3, ONES[:2]])
    assert both.tolist() == [3, 3, 1, 1]


def test_where_a_derivative_is_none_there_is_none(resources: Resources) -> None:
    facts = asked(resources, graphs.facts, "mixed", [X, np.array([3, 0, 0])])
    gather, sigmoid = facts["targets"].index("gather"), facts["targets"].index("sigmoid")
    by_value = asked(resources, graphs.gradient, "mixed", [X, np.array([3, 0, 0])], gather, sigmoid, X, [ONES[:3]])
    assert by_value.tolist() == [2, 0, 0, 1]
    # Of integers there is none: neither by them nor of them.
    integer = np.arange(4)
    assert (
        asked(resources, graphs.gradient, "mixed", [X, np.array([3, 0, 0])], gather, sigmoid, integer, [ONES[:3]])
        is None
    )
    pool = asked(resources, graphs.facts, "pool", [IMAGE])["targets"]
    assert "max_pool2d_with_indices" in pool


def test_what_has_no_value_to_read_says_so(resources: Resources) -> None:
    assert asked(resources, graphs.call_without_sources, "relu6", [X], 1) == (
        None,
        {1: "reads operator 0, which has no value"},
    )


def test_a_constant_needs_no_value(resources: Resources) -> None:
    value, refusals = asked(resources, graphs.call_without_sources, "relu6", [X], 2)
    assert (plain(value), refusals) == (("float32", 1), {})


def test_an_input_that_somebody_else_changes_later_stays_what_it_was(resources: Resources) -> None:
    frozen = X.copy()
    frozen.flags.writeable = False  # as a tensor that is read from a file
    values, _, _ = asked(resources, graphs.run, "relu6", [frozen])
    assert values[0].tolist() == [-4, -4, 15, 0]
