"""Findings about final outputs of programs that really ran: dead parts, exchanged buffers, and none in healthy ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.flows.cells.graph import comparison_options, lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Comparison

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]


def config(kind: str) -> ModelConfig:
    calibration, evaluation = (
        DataConfig(source="output_models:samples", arguments={"seed": seed}, count=count)
        for seed, count in ((1, 16), (2, 8))
    )
    return ModelConfig(
        name=kind.lower(),
        factory="output_models:model",
        arguments={"kind": kind},
        inputs=[InputConfig(name="x", shape=[1, 3, 32, 32])],
        calibration=calibration,
        evaluation=evaluation,
    )


def compared(kind: str, scheme: str, resources: Resources) -> Comparison:
    """Return the comparison of a model that was compiled for and run on the simulator."""
    ask = load(["model=digits_cnn", f"scheme={scheme}", "soc=SM8650"]).cells[0].request
    store = resources.store
    tools: Any = {"store": store, "workers": resources.workers}
    quantized = quantize(export(config(kind), "", **tools), ask.scheme, ask.backend.kind, **tools)
    lowered = lower(quantized, ask.soc, lowering_options(ask), **tools)
    bundled = bundle(lowered, ask.measure, store=store)
    capture = measure(bundled, (ask.device,), ask.soc, store=store, farm=resources.farm)
    return compare(lowered, capture, comparison_options(ask), **tools)


def failures(comparison: Comparison) -> list[str]:
    return [check.mistake for check in comparison.io_checks if check.status == "failed"]


@pytest.mark.parametrize(
    ("kind", "scheme", "mistakes", "details"),
    [
        (
            "Detector",
            "8a8w",
            ["a part of output output is constant"],
            ["from aten__softmax_default (4 to 8 of axis 2)"],
        ),
        ("ScaledDetector", "8a8w", ["a part of output output is constant"], ["(4 to 8 of axis 1)"]),
        (
            "DeadBranch",
            "8a8w",
            ["output 1 does not depend on the input"],
            ["the same program on the host loses it, too"],
        ),
        (
            "Sorted",
            "8a8w",
            [f"output {n} is not the value of its producer getitem{s}" for n, s in ((0, ""), (1, "_1"))],
            ["exchanged with output 1", "exchanged with output 0"],
        ),
        (
            "Largest",
            "16a8w",
            [f"output {n} is not the value of its producer getitem{s}" for n, s in ((0, "_1"), (2, ""))],
            ["exchanged with output 2", "exchanged with output 0"],
        ),
        ("Detector", "16a8w", [], []),
        ("Segmentation", "8a8w", [], []),
        ("Pooled", "8a8w", [], []),
        ("Characters", "8a8w", [], []),
    ],
)
def test_outputs_of_a_program_that_ran(
    kind: str, scheme: str, mistakes: list[str], details: list[str], resources: Resources
) -> None:
    failed = [check for check in compared(kind, scheme, resources).io_checks if check.status == "failed"]
    assert [check.mistake for check in failed] == mistakes
    assert [detail in (check.detail or "") for check, detail in zip(failed, details, strict=True)] == [True] * len(
        failed
    )
