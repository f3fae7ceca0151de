"""The cases of ExecuTorch's operator tests."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.operator_suite import suite, suite_inputs, suite_module, suite_operators


def test_every_test_of_the_suite_is_a_case_and_none_is_left_out_without_a_reason() -> None:
    cases = [*suite()]
    assert len(cases) == len({case["name"] for case in cases}) == 467
    assert {case["operator"] for case in cases} == set(suite_operators())
    assert all(case["skipped"] or case["inputs"] for case in cases)
    reasons = Counter(str(case["skipped"]).partition(":")[0] for case in cases if case["skipped"])
    assert set(reasons) == {"the suite skips it"}


def test_every_call_of_a_test_can_be_a_case() -> None:
    first, every = [*suite(["transpose"])], [*suite(["transpose"], "all")]
    assert {case["name"] for case in first} < {case["name"] for case in every}
    assert {"transpose_4d", "transpose_4d/1"} <= {case["name"] for case in every}


def test_a_case_is_a_module_with_inputs_of_several_seeds_and_the_same_weights_each_time() -> None:
    (case,) = (case for case in suite(["linear"]) if case["name"] == "linear_feature_sizes")
    modules = [suite_module(**case["arguments"]) for _ in range(2)]
    samples = suite_inputs(2, **case["arguments"])
    assert [sample["name"] for sample in samples] == ["seed 0", "seed 1"]
    (name,) = case["inputs"]
    assert not torch.equal(samples[0]["inputs"][name], samples[1]["inputs"][name])
    assert torch.equal(samples[0]["inputs"][name], case["inputs"][name])
    assert torch.equal(*(module(samples[0]["inputs"][name]) for module in modules))


def test_inputs_in_tuples_become_separate_inputs() -> None:
    (case,) = (case for case in suite(["index_put"]) if case["name"] == "index_put_two_indices")
    assert [*case["inputs"]] == ["tensors_0", "tensors_1", "tensors_2", "tensors_3"]
    x, rows, columns, values = case["inputs"].values()
    expected = x.index_put((rows, columns), values)
    assert torch.equal(suite_module(**case["arguments"])(x, rows, columns, values), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operators": ["ad"]}, "model.arguments.operators: no such operator: ad; one of abs, "),
        ({"calls": "some"}, "model.arguments.calls=some: accepted are first and all"),
    ],
)
def test_a_wrong_argument_names_the_accepted_values(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        [*suite(**arguments)]  # type: ignore[arg-type]
