"""A user's own metrics and ExecuTorch's comparators, in a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from qnnsweep.tasks.comparison.metrics import Pair, compute_metrics
from qnnsweep.tasks.errors import RequestError, ToolchainError
from qnnsweep.tasks.records import MetricValue, Quantization

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

CHANCE = np.random.default_rng(5)
REFERENCE = CHANCE.normal(size=(3, 4)).astype(np.float32)
ACTUAL = REFERENCE + CHANCE.normal(scale=0.1, size=(3, 4)).astype(np.float32)
GRID = Quantization(scale=(0.125,), zero_point=(0,), axis=None, quant_min=-128, quant_max=127, dtype="int8")


def pair(handle: int | None = 7) -> Pair:
    subject = MetricValue(
        operator="conv", operator_index=3, debug_handle=handle, output_index=0, sample=1, rung="device",
        reference="edge", metric="", value=None, problem=None,
    )  # fmt: skip
    return Pair(subject=subject, actual=ACTUAL, reference=REFERENCE, qparams=GRID)


def in_a_child(resources: Resources, names: Sequence[str], pairs: Sequence[Pair]) -> tuple[MetricValue, ...]:
    return resources.workers.call("compare", compute_metrics, names, pairs).value


def answers(resources: Resources, *names: str, pairs: int = 1) -> dict[str, tuple[float | None, str | None]]:
    results = in_a_child(resources, names, [pair()] * pairs)
    assert [(result.operator, result.sample, result.metric) for result in results] == [
        ("conv", 1, name) for name in names
    ] * pairs
    return {result.metric: (result.value, result.problem) for result in results}


def test_ours_are_what_executorch_s_comparators_say(resources: Resources) -> None:
    theirs = ("own_metrics:MSEComparator", "own_metrics:L1Comparator", "own_metrics:SNRComparator")
    results = answers(resources, "mse", "l1", "snr_db", *theirs, "own_metrics:QcomMSEComparator", pairs=2)
    for ours, name in zip(("mse", "l1", "snr_db"), theirs, strict=True):
        assert results[ours] == (pytest.approx(results[name][0], rel=1e-12), None)
    assert results["own_metrics:QcomMSEComparator"] == (pytest.approx(results["mse"][0], rel=1e-5), None)


def test_a_function_of_one_s_own_gets_the_tensors_and_may_have_no_answer(resources: Resources) -> None:
    results = answers(resources, "own_metrics:largest", "max_abs", "max_steps", "own_metrics:undefined")
    assert results["own_metrics:largest"] == (pytest.approx(results["max_abs"][0], rel=1e-6), None)
    assert results["max_steps"] == (pytest.approx(results["max_abs"][0] / 0.125, rel=1e-12), None)  # type: ignore[operator]
    assert results["own_metrics:undefined"] == (None, None)


def test_a_function_with_a_parameter_label_gets_that_of_the_sample_for_final_outputs_only(resources: Resources) -> None:
    final = replace(pair(), subject=replace(pair().subject, operator=None))
    pairs = [replace(final, label=label) for label in (int(ACTUAL.argmax()), int(ACTUAL.argmin()), None)]
    results = in_a_child(resources, ["own_metrics:is_right"], [*pairs, pair()])
    assert [(result.value, result.problem) for result in results] == [(1, None), (0, None), (None, None), (None, None)]


def test_a_metric_that_fails_is_told_and_the_others_answer(resources: Resources) -> None:
    assert answers(resources, "own_metrics:broken", "own_metrics:endless", "own_metrics:largest")[
        "own_metrics:largest"
    ] == (pytest.approx(float(np.abs(ACTUAL - REFERENCE).max())), None)
    assert answers(resources, "own_metrics:broken") == {"own_metrics:broken": (None, "ValueError: no such thing")}
    assert answers(resources, "own_metrics:endless") == {"own_metrics:endless": (None, "it returned inf")}


def test_a_comparator_s_preprocessing_sees_the_debug_handles_and_may_leave_a_pair_out(resources: Resources) -> None:
    results = in_a_child(resources, ["own_metrics:Halved"], [pair(7), pair(8), pair(None)])
    assert [(result.value, result.problem) for result in results] == [
        (pytest.approx(float(REFERENCE.sum()) / 2, rel=1e-5), None), (None, None), (None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("own_metrics:missing", "module 'own_metrics' has no attribute 'missing'"),
        ("no_such_module:metric", "No module named 'no_such_module'"),
        ("own_metrics:constant", "neither a function nor a NumericalComparatorBase"),
        ("own_metrics:Demanding", "cannot be made without arguments"),
    ],
)
def test_what_is_no_metric_is_the_request_s_fault(resources: Resources, name: str, line: str) -> None:
    with pytest.raises(RequestError, match=rf"^measure\.metrics={name}: {line}"):
        answers(resources, name)


def test_a_metric_that_kills_its_process_is_a_failed_child(resources: Resources) -> None:
    with pytest.raises(ToolchainError, match=r"^compare failed: SIGABRT"):
        answers(resources, "own_metrics:fatal")


def test_with_nothing_to_compare_nothing_of_one_s_own_is_loaded() -> None:
    assert compute_metrics(["own_metrics:missing"], []) == ()
